"""`ft dump`: what a running server's engine does right now."""

import threading
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.report_text import page, printable
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.server.key_file import KeysFault, read_keys
from firmtoken.runtime.server.report import Report

ROUTE = "/v1/dump"
ANSWER_S = 10.0
MAX_BYTES = 64 * 2**20
STUCK = "`kill -USR1 PID` writes the stacks of a server that hangs to its stderr; `ft why` tells of its last end"
FOREIGN = "is it a FirmToken server, and of this version?"


class ErrorText(msgspec.Struct):
    """What of an error is for people. Less than `server/errors.py` writes: whoever answers there may write less."""

    message: str


class ErrorBody(msgspec.Struct):
    """An answer that is an error, as OpenAI's clients expect it."""

    error: ErrorText


class NoAnswer(Exception):
    """The server did not answer in time, or not at all; the text says which."""


def dump(url: str, *, key_file: str | None, form: str) -> int:
    """Ask and print; the exit code."""
    target = _target(url)
    key = None if key_file is None else _key(Path(key_file))
    try:
        status, body = _ask(target, key)
    except NoAnswer as error:
        raise Failure(f"`{printable(url)}`: {error}", exit_code=FAILED, hint=STUCK) from error
    report = _report(url, status, body)
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(page(report))
    return 0


def _target(url: str) -> SplitResult:
    """`HOST:PORT` is as good as a whole URL."""
    try:
        target = urlsplit(url if "://" in url else f"http://{url}")
        known = target.scheme in ("http", "https") and bool(target.hostname)
        _ = target.port  # raises for what is no port
    except ValueError:
        known = False
    if not known or not target.netloc.isprintable() or not target.path.isascii():
        raise Failure(
            f"`{printable(url)}` is no address of a server",
            exit_code=WRONG,
            hint="for example `ft dump http://127.0.0.1:1919`",
        )
    return target


def _key(path: Path) -> bytes:
    """The first key of the server's file."""
    try:
        return read_keys(path)[0]
    except KeysFault as error:
        raise Failure(f"`--key-file`: {error}", exit_code=WRONG) from error


def _ask(target: SplitResult, key: bytes | None) -> tuple[int, bytes]:
    """Status and body; raises `NoAnswer`, after `ANSWER_S` in any case.

    A thread of its own: no timeout of a socket bounds a search for a name, or a server that trickles.
    """
    answers: list[tuple[int, bytes] | NoAnswer] = []

    def exchange() -> None:
        try:
            answers.append(_exchange(target, key))
        except NoAnswer as error:
            answers.append(error)

    asking = threading.Thread(target=exchange, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    answer = answers[0] if answers else NoAnswer(f"no answer within {ANSWER_S:g} s")
    if isinstance(answer, NoAnswer):
        raise answer
    return answer


def _exchange(target: SplitResult, key: bytes | None) -> tuple[int, bytes]:
    assert target.hostname is not None
    kind = HTTPSConnection if target.scheme == "https" else HTTPConnection
    # Not urllib: it would send 127.0.0.1 through `HTTP_PROXY`.
    with closing(kind(target.hostname, target.port, timeout=ANSWER_S)) as connection:
        try:
            connection.putrequest("GET", target.path.rstrip("/") + ROUTE)
            if key is not None:
                connection.putheader("authorization", b"Bearer " + key)
            connection.endheaders()
            with connection.getresponse() as response:
                body = response.read(MAX_BYTES + 1)
        except OSError as error:
            raise NoAnswer(f"no server answers: {error.strerror or error}") from error
        except (HTTPException, ValueError) as error:
            raise NoAnswer(f"no HTTP server answers: {printable(str(error))}") from error
    if len(body) > MAX_BYTES:
        raise NoAnswer(f"it answers with more than {MAX_BYTES:,} bytes")
    return response.status, body


def _report(url: str, status: int, body: bytes) -> Report:
    server = f"`{printable(url)}`"
    if status in (401, 403):
        raise Failure(
            f"{server}: the server wants an API key",
            exit_code=FAILED,
            hint="`--key-file FILE`, the one that the profile's `server.api_keys` names",
        )
    if status != 200:
        raise Failure(
            f"{server}: `GET {ROUTE}` is answered with status {status}{_said(body)}",
            exit_code=FAILED,
            hint=FOREIGN,
        )
    try:
        return msgspec.json.decode(body, type=Report)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Failure(
            f"{server}: the answer is no report: {printable(str(error))}",
            exit_code=FAILED,
            hint=FOREIGN,
        ) from error


def _said(body: bytes) -> str:
    """What an error of our own protocol says."""
    try:
        return ": " + printable(msgspec.json.decode(body, type=ErrorBody).error.message)
    except (msgspec.MsgspecError, RecursionError):
        return ""
