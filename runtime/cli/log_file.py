"""The log file of a server: beside stderr, rotated, and never a reason to stop serving."""

import fcntl
import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from firmtoken import __version__
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.exit_codes import FAILED
from firmtoken.runtime.server.foreign_variables import foreign_variables
from firmtoken.runtime.server.report import state_folder
from firmtoken.schema.regular_file import open_regular

FILE_BYTES = 10 * 1000**2
OLD_FILES = 5
"""Kept beside the one that is written: `NAME.1`, the youngest, to `NAME.5`."""
LONGEST_NAME_BYTES = 200
"""A file system takes 255, and `-65535.log.5` comes behind."""


class NoLogFile(Exception):
    """The file cannot be written; the text is the reason."""


class LogFile(RotatingFileHandler):
    """One server's file. Lines that cannot be written are lost, which is said once on stderr."""

    def __init__(self, path: Path, opening: Sequence[str]) -> None:
        """Open it, or raise `NoLogFile`; each new file begins with the lines of `opening`."""
        self._opening = "".join(f"{line}\n" for line in opening)
        self._num_lost = 0
        try:
            super().__init__(
                path,
                maxBytes=FILE_BYTES,
                backupCount=OLD_FILES,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            raise NoLogFile(error.strerror or str(error)) from error
        try:
            self._write_opening()
        except OSError as error:
            self._drop_stream()
            raise NoLogFile(error.strerror or str(error)) from error

    @property
    def path(self) -> Path:
        """Where it is, absolute."""
        return Path(self.baseFilename)

    def doRollover(self) -> None:
        """logging's side: begin the next file."""
        super().doRollover()
        self._write_opening()

    def emit(self, record: logging.LogRecord) -> None:
        """logging's side: write how many were lost, and a record."""
        before = self._num_lost
        if before:
            lost = f"{before} lines could not be written here"
            super().emit(logging.makeLogRecord({"levelname": "WARNING", "msg": lost}))
            if self._num_lost > before:
                return  # nothing can be written yet, and the count has the record already
            self._num_lost = 0
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """logging's side: a record could not be written; the next one opens the file anew."""
        self._drop_stream()
        self._num_lost += 1
        if self._num_lost == 1:
            fault = sys.exc_info()[1]
            say(f"`{self.path}` cannot be written, its lines are lost: {fault}", None)

    def _open(self) -> TextIOWrapper:
        stream = open(  # noqa: SIM115  logging closes it
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_regular
        )
        try:
            # Two writers would rotate each other's lines away; the lock ends with the process.
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.close()
            raise OSError(error.errno, "another server writes it") from error
        except OSError:
            pass  # a file system without locks
        return stream

    def _drop_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError, ValueError):  # it flushes first, onto the same full disk
                stream.close()

    def _write_opening(self) -> None:
        if self.stream is not None:
            self.stream.write(self._opening)
            self.stream.flush()


def open_log_file(
    setting: str, *, name: str, port: int, environ: Mapping[str, str], opening: Sequence[str]
) -> LogFile | None:
    """What `server.log_file` means; None for `off`, and where `auto` finds no place, which is said.

    Raises `Failure` for a path that was asked for and cannot be written.
    """
    if setting == "off":
        return None
    if setting != "auto":
        try:
            return LogFile(Path(setting), opening)
        except NoLogFile as error:
            raise Failure(
                f"`server.log_file`: cannot write `{setting}`: {error}",
                exit_code=FAILED,
                hint="name a file in a folder that is there and can be written, or `off`",
            ) from error
    try:
        path = _default_path(name, port, environ)
    except RuntimeError as error:  # a container's user may have no home at all
        _say_none(str(error))
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return LogFile(path, opening)
    except NoLogFile as error:
        _say_none(f"cannot write `{path}`: {error}")
    except OSError as error:
        _say_none(f"cannot make `{path.parent}`: {error.strerror}")
    return None


def opening_lines(
    plan: Plan, *, argv: Sequence[str], pid: int, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """What a reader of the file must know first: which program, which plan, and what may have altered it."""
    foreign = foreign_variables(environ, plan.environment)
    named = ", ".join(f"{name}={shlex.quote(value)}" for name, value in foreign.items())
    return (
        f"firmtoken {__version__}, process {pid}",
        f"command: {shlex.join(argv)}",
        f"profile {plan.profile.name}, plan {plan.fingerprint}",
        f"foreign variables that alter torch or CUDA: {named or 'none'}",
    )


def _default_path(name: str, port: int, environ: Mapping[str, str]) -> Path:
    """`NAME-PORT.log`; a name is free text, and a file's is not."""
    plain = re.sub(r"[^\w.-]", "-", name).lstrip(".-").encode()[:LONGEST_NAME_BYTES]
    stem = plain.decode(errors="ignore") or "profile"
    return state_folder(environ) / "logs" / f"{stem}-{port}.log"


def _say_none(reason: str) -> None:
    say(
        f"no log file, stderr alone has the log: {reason}",
        "`server.log_file` names another place, or is `off`",
    )
