"""What an engine counts of a device that measures its decode steps; the device is made up."""

from collections.abc import Callable
from typing import Any

import pytest

STEP_S = 0.002


class Clock:
    """Graphs that replay nothing, so that the CPU computes, and that know what a decode step took."""

    def __init__(self) -> None:
        self._latest = ""

    def replay(self, name: str, *_: object) -> bool:
        self._latest = name
        return False

    def settle(self) -> float | None:
        latest, self._latest = self._latest, ""
        return STEP_S if latest == "decode" else None


def test_each_decode_step_is_counted_once_with_what_it_took(
    start: Callable[..., Any], prompt: Callable[..., list[int]]
) -> None:
    bench = start()
    bench.interpreter._graphs = Clock()
    assert len(bench.ask(prompt(40), max_output=8)) == 8
    stats = bench.engine.stats()
    assert stats.timed_steps == 7  # the prompt's own step drew the first
    assert stats.timed_s == pytest.approx(7 * STEP_S)


def test_a_cpu_measures_no_step(
    start: Callable[..., Any], prompt: Callable[..., list[int]]
) -> None:
    bench = start()
    bench.ask(prompt(40), max_output=8)
    assert (bench.engine.stats().timed_steps, bench.engine.stats().timed_s) == (0, 0.0)
