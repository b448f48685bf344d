"""When each launch starts and ends if it takes so long: streams in issue order, events between them (CUDA's rules).

A launch starts when its stream is free and every event that it waits for has happened; nothing else holds it up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firmtoken.compiler.program import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One launch with its duration."""

    stream: str
    seconds: float
    waits: tuple[Value, ...] = ()
    records: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An event that a launch waited for: `source` recorded it."""

    source: int
    at: float
    """When it happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """When a task ran."""

    start: float
    end: float
    free: float
    """When its stream had finished what was issued before: `start - free` is waiting."""
    arrows: tuple[Arrow, ...]
    """The recorded events among `waits`; an event that nobody recorded orders nothing."""


def simulate(tasks: Sequence[Task]) -> tuple[Run, ...]:
    """Start and end of each task, in issue order."""
    free: dict[str, float] = {}
    events: dict[Value, Arrow] = {}
    runs = []
    for index, task in enumerate(tasks):
        ready = free.get(task.stream, 0.0)
        arrows = tuple(events[event] for event in task.waits if event in events)
        start = max((ready, *(arrow.at for arrow in arrows)))
        end = start + task.seconds
        free[task.stream] = end
        for event in task.records:
            events[event] = Arrow(source=index, at=end)
        runs.append(Run(start=start, end=end, free=ready, arrows=arrows))
    return tuple(runs)
