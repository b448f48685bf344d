"""`ft dump`: what a server answers is shown, and one that does not answer ends it."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from firmtoken.runtime.cli import dump as dump_module
from firmtoken.runtime.cli.dump import dump
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.report_text import page
from firmtoken.runtime.server.report import Report

CASES = Path(__file__).parent / "cases"
KEY = "schlüssel"


class Answers(BaseHTTPRequestHandler):
    """`/v1/dump` of a server with a key; other answers under other prefixes."""

    report = b""

    def do_GET(self) -> None:
        sent = self.headers.get("authorization", "").encode("latin-1")
        error = b'{"error": {"message": "the engine is\\nloading", "type": "x", "code": null}}'
        status, body = {
            "/v1/dump": (200, self.report) if sent == f"Bearer {KEY}".encode() else (401, b"{}"),
            "/open/v1/dump": (200, self.report),
            "/loading/v1/dump": (503, error),
            "/page/v1/dump": (200, b"<html>"),
            "/array/v1/dump": (200, b"[" * 10**5),
        }.get(self.path, (404, b"nothing here"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name is http.server's
        pass


@pytest.fixture
def server(stalled: Report) -> Iterator[str]:
    handler = type("Handler", (Answers,), {"report": msgspec.json.encode(stalled)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@contextmanager
def raw_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """One that speaks to its first client as it likes."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        done = threading.Event()

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    answer(connection)
                    done.wait(5)
                except OSError:
                    pass

        thread = threading.Thread(target=speak)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        done.set()
        thread.join()


def refusal(url: str, key_file: str | None = None) -> Failure:
    with pytest.raises(Failure) as failure:
        dump(url, key_file=key_file, form="table")
    assert "\n" not in failure.value.text
    return failure.value


def test_the_page_is_the_golden_one_and_fits_a_terminal(
    stalled: Report, golden: Callable[[Path, str], None]
) -> None:
    text = page(stalled)
    assert max(map(len, text.splitlines())) <= 100
    golden(CASES / "dump.txt", text + "\n")


def test_text_of_strangers_moves_no_cursor(stalled: Report) -> None:
    evil = "x\x1b[2J\x9b\u202e\r"
    report = msgspec.structs.replace(
        stalled,
        profile=evil,
        cause=evil,
        at=evil,
        exit=evil,
        stacks=evil,
        log=(evil,),
        environment={evil: evil},
        stats={evil: evil},
    )
    text = page(report)
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("x?[2J") >= 8


def test_long_lists_are_cut_and_say_so(stalled: Report) -> None:
    stacks = f'  File "/{"x" * 200}.py", line 7 in spin\n'
    stacks += "".join(f"line {line}\n" for line in range(1, 90))
    text = page(msgspec.structs.replace(stalled, stacks=stacks))
    assert "log, the last 12 of 30 lines\n" in text
    assert re.search(r'(?m)^  \.\.\.x{70,}\.py", line 7 in spin$', text)
    assert max(map(len, text.splitlines())) == 100
    assert text.endswith("  line 79\n  ... 10 more lines: `--format json`")


def test_an_engine_that_has_done_nothing_has_a_page(stalled: Report) -> None:
    idle = msgspec.structs.replace(stalled.position.streams[1], state="idle")
    position = msgspec.structs.replace(
        stalled.position, streams=(idle,), culprit=None, overdue_s=-1.0, due_s=0.0
    )
    report = msgspec.structs.replace(
        stalled, position=position, stats=None, threads=(), steps=(), log=(), stacks="", output=()
    )
    assert "  at        no op was running\n" in page(report)
    assert "moe_gate_up" not in page(report).split("\nstream ")[1]


def test_the_key_of_the_file_is_sent(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"\n# mine\n {KEY} \nother\n")
    assert dump(f"{server}/", key_file=str(keys), form="table") == 0
    assert capsys.readouterr().out.startswith("stall of tiny-cpu, 2026-12-01 02:19:33 UTC\n")
    failure = refusal(server)
    assert "wants an API key" in failure.text
    assert "`--key-file FILE`" in str(failure.hint)


def test_json_is_the_report(
    server: str, stalled: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dump(f"{server}/open", key_file=None, form="json") == 0
    assert msgspec.convert(json.loads(capsys.readouterr().out), Report) == stalled


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("/nowhere", "is answered with status 404$"),
        ("/loading", "is answered with status 503: the engine is loading$"),
        ("/page", "the answer is no report: "),
        ("/array", "the answer is no report: "),
    ],
)
def test_an_answer_that_is_no_report_is_one_sentence(
    server: str, prefix: str, message: str
) -> None:
    failure = refusal(server + prefix)
    assert failure.exit_code == 1
    assert re.search(message, failure.text)


def never(connection: socket.socket) -> None:
    connection.recv(2**16)


def drip_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    drip(connection, b"x")


def drip_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    drip(connection, b" ")


def drip(connection: socket.socket, piece: bytes) -> None:
    for _ in range(10):
        connection.sendall(piece)
        time.sleep(0.1)


@pytest.mark.parametrize("answer", [never, drip_head, drip_body])
def test_a_server_that_does_not_answer_is_left_in_time(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[socket.socket], None]
) -> None:
    monkeypatch.setattr(dump_module, "ANSWER_S", 0.2)
    with raw_server(answer) as url:
        begun = time.monotonic()
        failure = refusal(url)
        assert time.monotonic() - begun < 0.7  # the last byte would come after 1 s
    assert failure.exit_code == 1
    assert "no answer within" in failure.text
    assert "`kill -USR1 PID`" in str(failure.hint)


def test_what_speaks_no_http_is_said() -> None:
    with raw_server(lambda connection: connection.sendall(b"SSH-2.0-x\r\n\r\n")) as url:
        assert "no HTTP server answers" in refusal(url).text


def test_no_server_is_said_with_what_can_be_done() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    failure = refusal(f"http://127.0.0.1:{port}")
    assert failure.text == f"`http://127.0.0.1:{port}`: no server answers: Connection refused"
    assert failure.exit_code == 1


@pytest.mark.parametrize(
    "url",
    ["", "http://", "ftp://x", "http://x:port", "http://[::1", "http://x:99999", "http://x/ü"],
)
def test_what_is_no_address_is_2(url: str) -> None:
    assert refusal(url).exit_code == 2


@pytest.mark.parametrize("content", [None, "\n# none\n", b"\xff\xfe\xfa"])
def test_a_file_without_a_key_is_said(tmp_path: Path, content: str | bytes | None) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    failure = refusal("http://127.0.0.1:1", str(path))
    assert failure.text.startswith("`--key-file`: ")
    assert failure.exit_code == 2
