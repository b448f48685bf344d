"""What `ft bench` asks of a server and reads from its stream; the server is made up."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from firmtoken.runtime.bench.http import BenchFailed, run
from firmtoken.runtime.engine.messages import Sampling

SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=0, min_p=0.0, seed=0)
USAGE = {"completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}
Serve = Callable[..., str]


@pytest.fixture
def asked() -> list[dict[str, object]]:
    return []


@pytest.fixture
def serve(asked: list[dict[str, object]]) -> Iterator[Serve]:
    """`serve(frame, ...)`: the address of a server that answers every request with these."""
    running: list[ThreadingHTTPServer] = []

    def make(*frames: str, status: int = 200) -> str:
        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(status)
                self.end_headers()
                self.wfile.write("".join(f"data: {frame}\n\n" for frame in frames).encode())

            def log_message(self, *_: object) -> None:
                """Nobody reads it."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        running.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield make
    for server in running:
        server.shutdown()
        server.server_close()


def test_every_stream_is_drawn_as_wished_and_says_what_was_cached(
    serve: Serve, asked: list[dict[str, object]]
) -> None:
    address = serve(
        '{"text":"a"}',
        '{"text":"bc"}',
        json.dumps({"usage": USAGE}, separators=(",", ":")),
        "[DONE]",
    )
    streams = run(address, [[1, 2], [3, 4]], output=5, sampling=SAMPLING)
    assert [(len(one.arrivals), one.tokens, one.cached) for one in streams] == [(2, 5, 64)] * 2
    assert sorted(body.pop("prompt") for body in asked) == [[1, 2], [3, 4]]  # type: ignore[type-var]
    told = {key: asked[0][key] for key in ("temperature", "top_p", "top_k", "min_p", "seed")}
    assert told == {"temperature": 1.0, "top_p": 0.95, "top_k": 0, "min_p": 0.0, "seed": 0}
    assert (asked[0]["max_tokens"], asked[0]["ignore_eos"]) == (5, True)


@pytest.mark.parametrize(
    ("frames", "status", "told"),
    [
        (('{"error":{"message":"gone"}}',), 200, "ended in an error"),
        ((), 503, "answered 503"),
        (('{"text":"a"}',), 200, "only 1 chunks"),
    ],
)
def test_what_is_no_stream_is_no_measurement(
    serve: Serve, frames: tuple[str, ...], status: int, told: str
) -> None:
    with pytest.raises(BenchFailed, match=told):
        run(serve(*frames, status=status), [[1]], output=2, sampling=SAMPLING)
