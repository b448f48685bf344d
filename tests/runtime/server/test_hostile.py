"""Clients that do not speak HTTP as they should, on bare sockets."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from firmtoken.runtime.server import incoming

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
Serve = Callable[..., Any]


@contextmanager
def connection(running: Any) -> Iterator[socket.socket]:
    port = urlsplit(running.address).port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as opened:
        yield opened


def answer(running: Any, request: bytes) -> tuple[int, bytes]:
    """Status and body; the connection is read to its end."""
    with connection(running) as opened:
        opened.sendall(request)
        text = b"".join(iter(lambda: opened.recv(65_536), b""))
    head, _, body = text.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def with_body(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_connections_that_never_finish_their_head_block_nobody(shared: Any) -> None:
    with ExitStack() as stack:
        for _ in range(100):
            opened = stack.enter_context(connection(shared))
            opened.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        begun = time.monotonic()
        url = f"{shared.address}/v1/completions"
        assert httpx.post(url, json={"prompt": "x", "max_tokens": 1}).status_code == 200
        assert time.monotonic() - begun < 1


def test_a_body_that_does_not_come_is_408(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "BODY_S", 0.1)
    with connection(shared) as opened:
        opened.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        text = b""
        while not text.endswith(b"}}"):
            text += opened.recv(65_536)
    assert text.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in text


def test_a_body_that_does_not_come_does_not_hold_a_draining_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "BODY_S", 0.3)
    running = serve()
    with connection(running) as opened:
        opened.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        time.sleep(0.1)
        running.stop()
        begun = time.monotonic()
        while opened.recv(65_536):
            pass
    assert time.monotonic() - begun < 3


def test_brackets_nested_without_end_are_400(shared: Any) -> None:
    for body in (b'{"prompt":' + b"[" * 100_000, b'{"tools":' + b"[" * 900 + b"]" * 900 + b"}"):
        status, text = answer(shared, with_body(body))
        assert status == 400
        assert json.loads(text)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "request_",
    [
        b"\x00\xff\x16\x03 nonsense\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        with_body(b'{"prompt":"\xff\xfe"}'),
        with_body(b"null"),
    ],
)
def test_what_is_no_request_is_400(shared: Any, request_: bytes) -> None:
    assert answer(shared, request_)[0] == 400


def test_a_length_beyond_the_limit_is_413_before_the_body_comes(shared: Any) -> None:
    status, text = answer(shared, HEAD + b"Content-Length: 99999999999\r\n\r\n{")
    assert status == 413
    assert json.loads(text)["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("OPTIONS", "/v1/completions", 204),
        ("HEAD", "/health", 405),
        ("DELETE", "/v1/completions", 405),
        ("HEAD", "/nothing", 404),
    ],
)
def test_every_method_is_answered(shared: Any, method: str, path: str, status: int) -> None:
    response = httpx.request(method, shared.address + path)
    assert response.status_code == status
    if method == "DELETE":
        assert response.json()["error"]["code"] == "not_allowed"
