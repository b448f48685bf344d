"""`ft run` of a profile whose checkpoint is on the hub: to tokens, without the hub, and through Ctrl-C on the way."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.hub_server import COMMIT, HubServer, folder_files, serving
from tests.runtime.cli.conftest import heed_ctrl_c
from tests.runtime.cli.console import SOURCE
from tests.runtime.started import Started

from firmtoken.schema.references import shipped_folder

TINY = shipped_folder() / "weights" / "tiny-moe"
PROFILE = """
extends: ft:tiny-cpu
name: mine
model: {extends: ft:models/tiny-moe, source: {hub: tiny/moe}}
server: {port: 0}
"""
ASKED = {"prompt": "What does river mean?", "max_tokens": 8, "temperature": 0, "ignore_eos": True}

Run = Callable[..., Started]


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serving(folder_files(TINY)) as server:
        yield server


@pytest.fixture
def run(server: HubServer, tmp_path: Path) -> Iterator[Run]:
    """`run("--yes", HF_HUB_OFFLINE="1")`: `ft run`, with a cache of its own."""
    profile = tmp_path / "mine.yaml"
    profile.write_text(PROFILE)
    started: list[Started] = []

    def begin(*options: str, **variables: str) -> Started:
        environ = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "HF_ENDPOINT": server.url,
            "HF_HOME": str(tmp_path / "home"),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            **variables,
        }
        command = [sys.executable, "-m", "firmtoken.runtime.cli.run", "run", str(profile), *options]
        started.append(Started(command, environ=environ, before=heed_ctrl_c))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def text_of(process: Started) -> str:
    """What it answers; it is ended afterwards."""
    address = process.ready(60)
    answer = httpx.post(f"{address}/v1/completions", json=ASKED, timeout=30).json()
    source = httpx.get(f"{address}/v1/plan").json()["model"]["source"]
    assert Path(source["path"]).name == COMMIT
    process.signal(signal.SIGINT)
    assert process.exit_code() == 0
    return str(answer["choices"][0]["text"])


def test_from_the_hub_to_tokens_and_again_when_it_is_away(run: Run, server: HubServer) -> None:
    cold = text_of(run("--yes"))
    asked = len(server.paths())
    offline = run(HF_HUB_OFFLINE="1")
    assert text_of(offline) == cold != ""
    assert len(server.paths()) == asked
    assert any("`main` is taken as it was last seen" in line for line in offline.errors)


@pytest.mark.parametrize(
    ("signum", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_on_the_way_keeps_what_has_arrived(
    run: Run, server: HubServer, tmp_path: Path, signum: int, code: int, word: str
) -> None:
    server.faults.pause_s = 0.05
    process = run("--yes")
    blobs = tmp_path / "home/hub/models--tiny--moe/blobs"
    process.wait_for(process.errors, "to download from")
    arrived = wait_for_weights(blobs)
    begun = time.monotonic()
    process.signal(signum)
    assert process.exit_code(10) == code
    assert time.monotonic() - begun < 4
    assert process.errors[-1] == f"{word}\n"
    assert process.errors[-2].endswith(" of 20.7 MB are kept: the same command goes on there\n")
    kept = weights_on_the_way(blobs)
    assert sum(kept.values()) >= arrived > 0
    server.faults.pause_s = 0
    begun_at = len(server.sent)
    again = run("--yes")
    again.wait_for(again.errors, "digests as the hub says", 30)
    resumed = {sent.first for sent in server.sent[begun_at:] if sent.file}
    assert set(kept.values()) <= resumed


def weights_on_the_way(blobs: Path) -> dict[str, int]:
    """Digest -> bytes that have arrived; that of weights is a sha256."""
    sizes = {part.stem: part.stat().st_size for part in blobs.glob(f"{'?' * 64}.incomplete")}
    return {digest: size for digest, size in sizes.items() if size}


def wait_for_weights(blobs: Path) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if arrived := weights_on_the_way(blobs):
            return sum(arrived.values())
        time.sleep(0.02)
    raise AssertionError("nothing arrives")


def test_a_server_without_a_terminal_downloads_nothing_unasked(run: Run) -> None:
    process = run()
    assert process.exit_code(30) == 2
    assert process.errors[-1] == "  hint: `--yes` downloads without a question\n"
    assert process.output[0].startswith("effective context ")
