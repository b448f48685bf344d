"""A server that has rehearsed loads nothing when its first client comes."""

import http.client
import json
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from tests.runtime.server.conftest import VOCAB, serving, write_model_folder

from firmtoken.runtime.server.served_model import load_served_model

BODY = {
    "messages": [{"role": "user", "content": "the thin thing"}],
    "max_tokens": 3,
    "stream": True,
}


def loaded_by_the_first_stream(*, rehearsed: bool) -> list[str]:
    """Modules, in a process that has served nobody."""
    command = [sys.executable, "-m", __name__, *(["rehearsed"] if rehearsed else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_first_streamed_answer_loads_no_module_after_a_rehearsal() -> None:
    assert loaded_by_the_first_stream(rehearsed=False), "nothing is left to rehearse"
    assert loaded_by_the_first_stream(rehearsed=True) == []


def main() -> None:
    """What the first of two streams loads, as JSON."""
    import asyncio

    from firmtoken.runtime.server.rehearsal import rehearse

    with tempfile.TemporaryDirectory() as name:
        folder = write_model_folder(Path(name) / "model")
        model = load_served_model(
            folder, dialect="qwen3_5", vocab_size=VOCAB, now=lambda: datetime(2026, 1, 2)
        )
        if "rehearsed" in sys.argv:
            asyncio.run(rehearse(model))
        with serving(model, Path(name) / "journal", {}) as running:
            host, port = running.address.removeprefix("http://").split(":")
            connection = http.client.HTTPConnection(host, int(port))
            connection.request("GET", "/v1/models")
            connection.getresponse().read()
            before = set(sys.modules)
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(BODY),
                {"content-type": "application/json"},
            )
            assert b"[DONE]" in connection.getresponse().read()
            print(json.dumps(sorted(set(sys.modules) - before)))


if __name__ == "__main__":
    main()
