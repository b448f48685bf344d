"""`ft run` with a scripted engine, and a report as the server writes it."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.runtime.started import Started

from firmtoken.runtime.server.report import (
    PositionReport,
    Report,
    Requests,
    StepReport,
    StreamReport,
    ThreadReport,
)

RUN_FAKE = Path(__file__).with_name("run_fake.py")
STEPS = (("prefill", 512, 1, 903.4), *(("decode", 4, 4, 11.25),) * 20, ("prefill", 2048, 3, None))


@pytest.fixture
def stalled() -> Report:
    """An op of layer 5 spins; the copies of layer 6 wait for it."""
    return Report(
        kind="stall",
        cause="a unit of `prefill` is 7.3 s over its deadline of 50.0 s: moe_gate_up of layer 5 runs",
        at="2026-12-01T02:19:33.120+00:00",
        version="0.1.0",
        profile="tiny-cpu",
        fingerprint="0123456789abcdef" * 4,
        engine_pid=4711,
        uptime_s=723.4,
        state="restarting",
        outcome="restart 1 of 3",
        position=PositionReport(
            due_s=50.0,
            overdue_s=7.3,
            units=8123,
            streams=(
                StreamReport(
                    name="copy",
                    state="waiting",
                    program="prefill",
                    launch=97,
                    op="fetch",
                    kernel="torch",
                    layer=6,
                    text="fetch of layer 6, launch 97",
                    thread=4713,
                    cpu_share=0.0,
                ),
                StreamReport(
                    name="main",
                    state="running",
                    program="prefill",
                    launch=96,
                    op="moe_gate_up",
                    kernel="torch",
                    layer=5,
                    text="moe_gate_up of layer 5, launch 96",
                    thread=4711,
                    cpu_share=1.0,
                ),
            ),
            culprit="moe_gate_up of layer 5, launch 96",
        ),
        requests=Requests(running=3, waiting=5),
        stats={"running": 3, "waiting": 5, "pages_free": 12, "link_bytes": {"decode": 1024}},
        threads=(
            ThreadReport(id=4711, name="python3", state="R", cpu_share=1.0, stream="main"),
            ThreadReport(id=4713, name="python3", state="S", cpu_share=0.0, stream="copy"),
        ),
        steps=tuple(
            StepReport(
                run=run,
                program=program,
                rows=rows,
                num_seqs=num_seqs,
                begun_s=round(60 - run / 10, 1),
                took_ms=took_ms,
            )
            for run, (program, rows, num_seqs, took_ms) in enumerate(STEPS, start=1)
        ),
        environment={"OMP_NUM_THREADS": "64"},
        log=tuple(f"2026-12-01 02:19:{second:02d} INFO line {second}" for second in range(30)),
        stacks="Current thread 0x7f00 (most recent call first):\n"
        + "\n".join(f'  File "/ft/spawned.py", line {line} in serve' for line in range(3)),
        exit=None,
        output=("loading", "a warning of a library"),
    )


def heed_ctrl_c() -> None:
    """Whoever runs in the background hands down that SIGINT is ignored, until our first line takes that back."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(script, *arguments)`: `ft run` whose engine follows the script of `fake_engine.py`."""
    started: list[Started] = []

    def begin(script: dict[str, object] | None = None, *arguments: str) -> Started:
        given = arguments or ("tiny-cpu", "--port", "0")
        command = [sys.executable, str(RUN_FAKE), json.dumps(script or {}), "run", *given]
        started.append(Started(command, before=heed_ctrl_c))
        return started[-1]

    yield begin
    for process in started:
        process.close()
