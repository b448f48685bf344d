"""The last line of a server whose engine is dead: its cause, whatever its clients still do."""

import os
import signal
import socket
from collections.abc import Callable
from typing import Any

BODY = b'{"prompt": "abc", "max_tokens": 3}'
Start = Callable[..., Any]


def test_a_request_that_comes_after_the_end_is_not_the_last_line(start: Start) -> None:
    process = start({})
    host, port = process.ready().removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode())
        os.kill(process.engine_pid(), signal.SIGKILL)
        process.wait_for(process.errors, "no restart")
        client.sendall(BODY)
        process.wait_for(process.errors, "refused: 503 engine_dead")
    assert process.exit_code() == 4
    cause = "the engine is dead: the engine process was killed by SIGKILL\n"
    assert process.errors[-1] == cause
    assert process.errors.count(cause) == 1
