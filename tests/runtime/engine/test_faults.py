"""The test hook: each kind of fault does what it says, at the launch that was named, once."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runtime.waiting import until

from firmtoken.compiler.faults import Fault
from firmtoken.compiler.program import BoundStep, Step
from firmtoken.runtime.engine.faults import Faults, InjectedError, happen
from firmtoken.runtime.engine.position import POSITION_BYTES, Position
from firmtoken.runtime.engine.warm_up import warm_up
from firmtoken.runtime.kernels.batch import Batch

Prompt = Callable[..., list[int]]
NOTHING = torch.empty(0, dtype=torch.int64)
BATCH = Batch(
    rows=0, real_rows=0, token_ids=NOTHING, positions=NOTHING, token_slots=NOTHING, segments=()
)


def step(op: str, layer: int) -> BoundStep:
    return BoundStep(
        step=Step(op=op, kernel="torch", stream="main", rows="tokens", operands={}),
        reads=(),
        writes=(),
        weights=(),
        waits=(),
        records=(),
        holds=(),
        drops=(),
        operands={},
        indices={},
        at={"l": layer},
    )


class Launches:
    """Wrapped launches of one op that only count themselves."""

    def __init__(self, *faults: Fault, position: Position | None = None) -> None:
        self.faults = Faults(faults, position or Position())
        self.num_run = 0

    def launch(self, op: str, layer: int, program: str) -> int:
        def run(_: Batch) -> int:
            self.num_run += 1
            return 42

        found: int = self.faults.wrap(run, step(op, layer), program, {})(BATCH)
        return found


def test_a_launch_that_no_fault_names_is_not_wrapped() -> None:
    def run(_: Batch) -> None: ...

    faults = Faults((Fault(kind="error", op="gdn", layer=2, program="decode"),), Position())
    assert faults.wrap(run, step("gdn", 1), "decode", {}) is run
    assert faults.wrap(run, step("gdn", 2), "prefill", {}) is run
    assert faults.wrap(run, step("route", 2), "decode", {}) is run
    assert faults.wrap(run, step("gdn", 2), "decode", {}) is not run


def test_a_fault_happens_at_its_launch_and_once() -> None:
    launches = Launches(Fault(kind="error", op="gdn", layer=2, step=3))
    for number in range(1, 8):
        assert launches.launch("gdn", 1, "decode") == 42
        if number == 3:
            with pytest.raises(InjectedError, match="planned in `gdn`"):
                launches.launch("gdn", 2, "decode")
        else:
            assert launches.launch("gdn", 2, "decode") == 42
    assert launches.num_run == 7 + 6


def test_a_spent_fault_does_not_come_back_with_the_next_engine() -> None:
    memory = bytearray(POSITION_BYTES)
    both = (Fault(kind="error", op="gdn"), Fault(kind="error", op="gdn", step=2))
    first = Launches(*both, position=Position(memory))
    with pytest.raises(InjectedError):
        first.launch("gdn", 0, "decode")
    second = Launches(*both, position=Position(memory))
    second.launch("gdn", 0, "decode")
    with pytest.raises(InjectedError):
        second.launch("gdn", 0, "decode")
    assert Position(memory).spent() == [0, 1]


def test_launches_count_only_while_it_is_armed() -> None:
    launches = Launches(Fault(kind="error", op="gdn", step=2))
    launches.faults.armed = False
    for _ in range(5):
        launches.launch("gdn", 0, "decode")
    launches.faults.armed = True
    launches.launch("gdn", 0, "decode")
    with pytest.raises(InjectedError):
        launches.launch("gdn", 0, "decode")


def test_out_of_memory_is_what_torch_raises() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        happen(Fault(kind="oom", op="gdn"))


def test_slow_sleeps_and_goes_on() -> None:
    launches = Launches(Fault(kind="slow", op="gdn", seconds=0.05))
    begun = time.monotonic()
    assert launches.launch("gdn", 0, "decode") == 42
    assert time.monotonic() - begun >= 0.05


def in_a_child(kind: str) -> int:
    """The exit code of a process to which the fault happens, and which leaves with 7 when it is told to."""
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))
            happen(Fault(kind=kind, op="gdn"))  # type: ignore[arg-type]  # one of its literals
        finally:
            os._exit(1)  # never back into the tests
    if kind != "die":
        try:
            until(lambda: cpu_ticks(child) >= 3, within_s=30)  # until it spins
            os.kill(child, signal.SIGUSR1)
            time.sleep(0.2)
        finally:
            os.kill(child, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def cpu_ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11])  # utime


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("stall", 7),  # Python goes on: its signal handler runs
        ("freeze", -signal.SIGTERM),  # nothing of Python runs any more
        ("die", -signal.SIGKILL),
    ],
)
def test_what_never_comes_back(kind: str, code: int) -> None:
    assert in_a_child(kind) == code


def test_warm_up_meets_no_fault_and_the_first_request_does(start, prompt: Prompt) -> None:
    fault = Fault(kind="error", op="head", program="prefill")
    bench = start(
        "tiny-cpu-resident",
        "serving.context=512",
        change=lambda plan: replace(plan, faults=(fault,)),
    )
    warm_up(bench.plan, bench.interpreter)
    assert bench.interpreter.position.spent() == []
    bench.add(1, prompt(20), 2)
    bench.drain()
    assert bench.end(1).message == (
        "`head` (prefill, for `prefill.logits`, stream `main`) failed: InjectedError: "
        "a fault was planned in `head`"
    )
