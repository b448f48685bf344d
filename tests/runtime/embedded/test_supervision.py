"""The real engine stalls or is killed: everyone hears it, the report names the launch, and it is back without help."""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.started import Started
from tests.runtime.waiting import until

from firmtoken.runtime.server.report import Report, ends, read_report, reports_folder

ROOT = Path(__file__).resolve().parents[3]
RUN = Path(__file__).with_name("run_with_faults.py")
URL = "/v1/completions"
DEADLINE_S = 2
FIVE_S = 5.0
"""What D11 allows beyond the deadline."""


class Serving(Started):
    """A `ft run` whose engine may meet faults."""

    def __init__(
        self, state: Path, profile: str, faults: list[Any], overrides: tuple[str, ...]
    ) -> None:
        command = [sys.executable, str(RUN), json.dumps(faults), "run"]
        command += [str(ROOT / "profiles" / f"{profile}.yaml"), "--port", "0"]
        for override in (f"schedule.step_deadline={DEADLINE_S}s", *overrides):
            command += ["--set", override]
        self.environ = {"PYTHONPATH": str(ROOT / ".src"), "XDG_STATE_HOME": str(state)}
        super().__init__(command, environ=self.environ)
        self.address = ""

    def ask(self, prompt: str = "river", **fields: object) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True} | fields
        return httpx.post(f"{self.address}{URL}", json=body, timeout=120)

    def stream(self, prompt: str, **fields: object) -> str:
        body = {"prompt": prompt, "max_tokens": 3000, "stream": True, "ignore_eos": True} | fields
        with httpx.stream("POST", f"{self.address}{URL}", json=body, timeout=120) as response:
            return response.read().decode()

    def health(self) -> dict[str, Any]:
        health: dict[str, Any] = httpx.get(f"{self.address}/health").json()
        return health

    def until_ready(self) -> None:
        until(lambda: self.health()["state"] == "ready", within_s=60, every_s=0.1)

    def report(self) -> Report:
        """The newest; it is written while clients are already being told."""
        end = time.monotonic() + 10
        while True:
            for place in ends(reports_folder(self.environ))[:1]:
                with contextlib.suppress(FileNotFoundError):
                    return read_report(place)
            assert time.monotonic() < end
            time.sleep(0.05)

    def expert_megabytes(self) -> list[float]:
        """Read by each engine that became ready."""
        found = [re.search(r"([\d.]+) MB of experts", line) for line in self.errors]
        return [float(match[1]) for match in found if match]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    started: list[Serving] = []

    def start(
        *overrides: str, faults: list[Any] | None = None, profile: str = "tiny-cpu"
    ) -> Serving:
        started.append(Serving(tmp_path, profile, faults or [], overrides))
        started[-1].address = started[-1].ready(within_s=120)
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.report(39, 44)
@pytest.mark.parametrize(
    ("kind", "op", "program", "layer", "stream"),
    [
        ("stall", "moe_down", "decode", 3, "main"),
        ("freeze", "gdn", "decode", 1, "main"),
        ("stall", "fetch", "prefill", None, "link"),
    ],
)
def test_seed_case_b_an_op_that_spins_for_ever(
    serving: Callable[..., Serving],
    kind: str,
    op: str,
    program: str,
    layer: int | None,
    stream: str,
) -> None:
    fault = {"kind": kind, "op": op, "program": program, "layer": layer, "step": 3}
    running = serving("serving.requests=2", faults=[fault])
    prompts = [f"{word} " * 150 for word in ("river", "house", "tree", "stone")]
    with ThreadPoolExecutor(5) as pool:
        streams = [pool.submit(running.stream, prompt) for prompt in prompts]
        # Until the deadline is missed.
        until(lambda: running.health()["state"] != "ready", within_s=60, every_s=0.05)
        noticed = time.monotonic()
        later = running.ask()
        texts = [one.result() for one in streams]
        told_s = time.monotonic() - noticed
    assert told_s < FIVE_S
    for text in texts:
        *_, error, done, _ = text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert f"stalled in `{op}`" in error and done == "data: [DONE]"
    assert (later.status_code, later.json()["error"]["code"]) == (503, "engine_restarting")
    running.until_ready()
    assert running.ask().status_code == 200
    report = running.report()
    assert report.kind == "stall" and report.outcome == "restart 1 of 3"
    assert report.position.culprit is not None
    culprit = next(s for s in report.position.streams if s.text == report.position.culprit)
    assert (culprit.op, culprit.program, culprit.state) == (op, program, "running")
    assert f"stream `{stream}`" in culprit.text and f"launch {culprit.launch}" in culprit.text
    assert layer is None or culprit.layer == layer
    assert report.position.due_s == DEADLINE_S
    assert 0 < report.position.overdue_s < FIVE_S
    assert "faults.py" in report.stacks
    busiest = max(report.threads, key=lambda thread: thread.cpu_share)
    assert (busiest.id, busiest.state) == (culprit.thread, "R")
    assert len(report.steps) > 1 and report.steps[-1].took_ms is None
    assert running.expert_megabytes()[1:] == [0.0]


@pytest.mark.report(39)
@pytest.mark.parametrize("profile", ["tiny-cpu", "tiny-cpu-resident"])
def test_kill_9_of_the_engine_during_20_streams(
    serving: Callable[..., Serving], profile: str
) -> None:
    running = serving(profile=profile)
    alone = running.ask().json()["choices"][0]["text"]
    with ThreadPoolExecutor(20) as pool:
        streams = [pool.submit(running.stream, f"word {number}") for number in range(20)]
        until(lambda: running.health()["waiting"] >= 16, within_s=30, every_s=0.02)
        os.kill(running.engine_pid(), signal.SIGKILL)
        killed = time.monotonic()
        texts = [one.result() for one in streams]
    assert time.monotonic() - killed < FIVE_S
    for text in texts:
        # Those that were let in have a stream open; those that only queued hear it as a body of their own.
        assert '"code":"engine_dead"' in text
        assert '"finish_reason":"' not in text
    running.until_ready()
    assert running.ask().json()["choices"][0]["text"] == alone
    first, second = running.expert_megabytes()
    assert first > 10 and second == 0.0
    assert running.report().exit == "was killed by SIGKILL"


def test_kill_9_of_the_server_leaves_no_engine_and_no_memory_within_a_second(
    serving: Callable[..., Serving],
) -> None:
    running = serving()
    pid = running.engine_pid()
    assert segments_of(pid) >= {"ft-bank", "ft-snapshots", "ft-position"}
    running.popen.kill()
    running.popen.wait()
    time.sleep(1)
    assert is_gone(pid)
    assert segments_of(pid) == set()


def test_an_engine_that_dies_again_is_started_again(
    serving: Callable[..., Serving],
) -> None:
    die = {"kind": "die", "op": "attention", "program": "decode"}
    running = serving(faults=[die | {"step": 5}, die | {"step": 9}])
    for _ in range(2):
        running.until_ready()
        text = running.stream("stone " * 20)
        assert '"code":"engine_dead"' in text
    running.until_ready()
    assert running.ask().status_code == 200
    assert running.health()["restarts"] == 2


def segments_of(pid: int) -> set[str]:
    """Names of the anonymous files that a process has mapped."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    return set(re.findall(r"/memfd:(ft-\w+)", maps))


def is_gone(pid: int) -> bool:
    """Gone, or a zombie that nobody has collected: where process 1 is no init, nobody does."""
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(") ", 1)[1].startswith("Z")


def test_a_prompt_that_fails_three_times_costs_one_restart_and_is_then_answered(
    serving: Callable[..., Serving],
) -> None:
    faults = [
        {"kind": kind, "op": "attention", "program": "prefill", "step": step}
        for kind, step in (("oom", 1), ("error", 2), ("oom", 3))
    ]
    running = serving(faults=faults)
    long = "stone " * 150
    said = [running.ask(long) for _ in range(3)]
    assert [answer.status_code for answer in said] == [500, 500, 500]
    assert "out of memory in `attention`" in said[0].json()["error"]["message"]
    until(lambda: running.health()["restarts"] >= 1, every_s=0.05)
    running.until_ready()
    assert running.ask(long).status_code == 200
    assert running.health()["restarts"] == 1
    assert "3 steps in a row failed" in running.report().cause
