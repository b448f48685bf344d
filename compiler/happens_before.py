"""Vector clocks over stream order and events: what is surely before what in any legal execution (D5).

Events have CUDA's semantics: a wait takes the last record before it in issue order, a wait on a never recorded event
orders nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from firmtoken.compiler.program import Value

LEGACY_STREAM = "legacy"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch as the checker sees it."""

    label: str
    stream: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    waits: tuple[Value, ...] = ()
    records: tuple[Value, ...] = ()
    in_place: frozenset[tuple[Value, Value]] = frozenset()
    """Pairs (input, output) that may share bytes."""
    continues: bool = False
    """It writes some rows; rows that an earlier launch of the same chunk or span wrote still count."""
    composed: bool = False
    """A whole program as one launch: its values share bytes among themselves, which its own check allows."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a launch starts and what number it has on its stream."""

    stream: int
    tick: int
    start: tuple[int, ...]
    """Per stream: launches of it that are surely done when this one starts (its own tick included)."""


def stamp(launches: Sequence[Launch]) -> tuple[Stamp, ...]:
    """Clocks of all launches, in issue order."""
    streams = {name: index for index, name in enumerate(_streams(launches))}
    clocks = [[0] * len(streams) for _ in streams]
    events: dict[Value, tuple[int, ...]] = {}
    stamps = []
    for launch in launches:
        stream = streams[launch.stream]
        clock = clocks[stream]
        for event in launch.waits:
            recorded = events.get(event)
            if recorded is not None:
                for index, tick in enumerate(recorded):
                    if tick > clock[index]:
                        clock[index] = tick
        clock[stream] += 1
        start = tuple(clock)
        stamps.append(Stamp(stream, clock[stream], start))
        for event in launch.records:
            events[event] = start
    return tuple(stamps)


def before(first: Stamp, second: Stamp) -> bool:
    """Whether `first` is done before `second` starts, in every legal execution."""
    return second.start[first.stream] >= first.tick and first is not second


def _streams(launches: Iterable[Launch]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(launch.stream for launch in launches))
