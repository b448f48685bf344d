"""The watchdog: time that it has seen pass, and nothing that a clock invents."""

from dataclasses import dataclass

import pytest

from firmtoken.runtime.engine.position import POSITION_BYTES, Position, PositionReader
from firmtoken.runtime.server.restarts import BACK_OFF_S, MOST, WINDOW_S, Restarts
from firmtoken.runtime.server.watchdog import TICK_S, Missed, Watchdog


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """An engine's words and the watchdog that looks at them."""

    def __init__(self) -> None:
        memory = bytearray(POSITION_BYTES)
        self.clock = Clock()
        self.position = Position(memory)
        self.watchdog = Watchdog(PositionReader(memory), self.clock, answer_s=5.0)

    def look(self, seconds: float, *, asked: bool = True) -> Missed | None:
        """Tick by tick."""
        missed = None
        for _ in range(round(seconds / TICK_S)):
            self.clock.now += TICK_S
            missed = missed or self.watchdog.look(asked=asked)
        return missed


def test_a_unit_that_takes_longer_than_it_may_is_missed() -> None:
    watched = Watched()
    watched.position.due(2.0)
    assert watched.look(1.9) is None
    missed = watched.look(0.4)
    assert missed is not None
    assert (missed.due_s, missed.silent) == (2.0, False)
    assert 2.0 < missed.waited_s < 2.2


def test_units_that_come_in_time_are_never_missed() -> None:
    watched = Watched()
    for _ in range(20):
        watched.position.due(2.0)
        assert watched.look(1.8) is None


def test_an_engine_that_nobody_asked_may_sleep() -> None:
    watched = Watched()
    watched.position.idle()
    assert watched.look(3600, asked=False) is None


@pytest.mark.report(50)
def test_an_engine_that_holds_requests_and_begins_nothing_is_missed() -> None:
    watched = Watched()
    watched.position.idle()
    assert watched.look(4.8) is None
    missed = watched.look(0.5)
    assert missed is not None and missed.silent


def test_the_time_before_the_request_does_not_count() -> None:
    watched = Watched()
    watched.position.idle()
    assert watched.look(600, asked=False) is None
    assert watched.look(4.8) is None


@pytest.mark.parametrize("jump", [3600.0, 86_400.0 * 365, -3600.0])
def test_a_clock_that_jumps_stalls_nobody(jump: float) -> None:
    watched = Watched()
    watched.position.due(2.0)
    assert watched.look(1.0) is None
    watched.clock.now += jump
    assert watched.look(0.7) is None
    assert watched.look(1.0) is not None


def test_a_watchdog_that_was_held_up_itself_blames_nobody() -> None:
    watched = Watched()
    watched.position.due(2.0)
    for _ in range(5):
        watched.clock.now += 30.0  # our own loop was busy
        assert watched.watchdog.look(asked=True) is None


def test_restarts_are_few_and_later_each_time_and_come_back() -> None:
    restarts: Restarts[str] = Restarts()
    taken = [restarts.take(float(now), f"cause {now}") for now in range(MOST + 1)]
    assert taken == [*BACK_OFF_S, None]
    assert restarts.first_cause(MOST) == "cause 0"
    assert restarts.take(WINDOW_S - 1, "again") is None
    assert restarts.used(WINDOW_S) == MOST - 1
    assert restarts.first_cause(WINDOW_S) == "cause 1"  # the first is forgotten, two still count
    assert restarts.take(WINDOW_S, "again") == BACK_OFF_S[-1]
    assert restarts.take(3 * WINDOW_S, "later") == BACK_OFF_S[0]
    assert restarts.used(3 * WINDOW_S) == 1
    assert restarts.first_cause(3 * WINDOW_S) == "later"
    assert restarts.used(5 * WINDOW_S) == 0
    assert restarts.first_cause(5 * WINDOW_S) is None


def test_no_restarts_may_be_asked_for() -> None:
    none: Restarts[str] = Restarts(0)
    assert none.take(0.0, "cause") is None
