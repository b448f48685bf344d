"""Once it is ready, an engine loads nothing: no module and no library, whatever the lengths that come."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.runtime.started import Started

ROOT = Path(__file__).resolve().parents[3]
LENGTHS = (1, 11, 64, 180, 700, 2560)
IMPORT = "engine: import time:"


class Server(Started):
    """`ft run`, whose engine says each import on its stderr, which is the server's log."""

    def imports(self) -> list[str]:
        """Modules that the engine has imported so far; waits until it is silent."""
        before = -1
        while before != len(self.errors):
            before = len(self.errors)
            time.sleep(0.3)
        return [line for line in self.errors if IMPORT in line]

    def libraries(self) -> set[str]:
        """Files mapped into the engine's memory as code."""
        maps = Path(f"/proc/{self.engine_pid()}/maps").read_text().splitlines()
        return {line.split()[-1] for line in maps if " r-xp " in line}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    command = [sys.executable, "-P", "-m", "firmtoken.runtime.cli.run", "run", "tiny-cpu"]
    environ = {
        "PYTHONPATH": str(ROOT / ".src"),
        "PYTHONPROFILEIMPORTTIME": "1",
        "XDG_STATE_HOME": str(tmp_path),
    }
    server = Server([*command, "--port", "0"], environ=environ)
    try:
        yield server
        server.signal(signal.SIGTERM)
        assert server.exit_code(30) == 0
    finally:
        server.close()


@pytest.mark.report(45, 46)
def test_no_length_makes_a_ready_engine_load_anything(server: Server) -> None:
    with httpx.Client(base_url=server.ready(within_s=120), timeout=60) as client:
        assert client.get("/health").status_code == 200
        imports, libraries = server.imports(), server.libraries()
        assert len(imports) > 100 and any("torch" in name for name in libraries)
        for first in (100, 100):  # cold, then as hits
            for length in LENGTHS:
                prompt = [first + length % 97, *(300 + at % 3000 for at in range(length - 1))]
                body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True}
                answer = client.post("/v1/completions", json=body)
                assert answer.json()["usage"]["completion_tokens"] == 3
        together = {"prompt": [[7, at] for at in range(4)], "max_tokens": 5, "ignore_eos": True}
        assert len(client.post("/v1/completions", json=together).json()["choices"]) == 4
    assert server.imports() == imports
    assert server.libraries() == libraries
