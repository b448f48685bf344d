"""Steps ahead on a device that runs as late as it likes: every text is right, and each rule is needed for that."""

from collections.abc import Callable

import pytest
from tests.runtime.engine.late_device import (
    late_plan,
)
from tests.runtime.engine.late_traffic import FAULTS, Traffic

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.invariants import InvariantBroken


@pytest.fixture(scope="module")
def plan() -> Plan:
    return late_plan()


Run = Callable[..., Traffic]


@pytest.fixture
def run(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> Run:
    def start(seed: int, strange: float = 0.0) -> Traffic:
        traffic = Traffic(plan, seed, monkeypatch)
        traffic.interpreter.strange = strange
        traffic.run(60)
        return traffic

    return start


@pytest.mark.parametrize("seed", range(6))
def test_every_text_is_right_however_late_the_device_is(seed: int, run: Run) -> None:
    traffic = run(seed)
    assert traffic.interpreter.most_under_way == 2
    assert traffic.seen["stop"] > 5 and traffic.seen["abort"] and traffic.seen["preempted"]
    assert traffic.seen["cached"] > 30


@pytest.mark.parametrize("seed", range(3))
def test_logits_that_are_no_numbers_end_their_request_and_nobody_elses(seed: int, run: Run) -> None:
    traffic = run(seed, strange=0.01)
    assert traffic.seen["error"] and traffic.seen["stop"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_makes_a_text_wrong(
    fault: Callable[[pytest.MonkeyPatch], None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, IndexError, KeyError, InvariantBroken)):
        for seed in range(6):
            run(seed)
