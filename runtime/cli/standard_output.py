"""Standard output and error as commands use them: whatever they are connected to, no word ends in a stack."""

import io
import os
import sys


class Unheard(OSError):
    """Standard output takes no more, told apart from faults of other files; a reader who left is `BrokenPipeError`."""


class _StandardOutput(io.TextIOWrapper):
    """Standard output whose faults say so."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unheard(error.errno, error.strerror) from error

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unheard(error.errno, error.strerror) from error


def open_outputs() -> None:
    """What an encoding lacks is escaped; a stream that was closed (`>&-`) is one that nobody reads."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # Stays open: it has the number of the stream it stands for, which no other file may get.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    given = sys.stdout
    if not isinstance(given, io.TextIOWrapper):
        return
    encoding, by_line, at_once = given.encoding, given.line_buffering, given.write_through
    sys.stdout = _StandardOutput(
        given.detach(),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=by_line,
        write_through=at_once,
    )


def say_no_more() -> None:
    """Drop what was not written: Python flushes once more at its end, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
