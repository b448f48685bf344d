"""The one rule of D5: between the write a read means and that read, nothing else may touch those bytes.

`check_races` walks a flat list once with one vector clock a stream; race, overlap, ring overrun, early reuse and stale
views are all cases of it. Comparing with the last write and the reads since is enough: earlier ones are before those
by the same check, and before is transitive.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from firmtoken.compiler.happens_before import Launch, Stamp, before, stamp
from firmtoken.compiler.program import Value

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes `start` to `end` of an arena; values of other owners lie in arenas of their own (A3)."""

    arena: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where values live and what they are."""

    place: Callable[[Value], Place]
    persistent: Callable[[Value], bool]
    """Whether the value holds something before the first launch."""
    view_of: Callable[[Value], tuple[Value, ...]]
    one_tile: Callable[[Value], bool] = lambda value: False
    """Whether it holds the rows of one tile only, so that the next tile writes it anew."""


@dataclass(slots=True)
class _Cell:
    value: Value | None = None
    write: Stamp | None = None
    writer: str = ""
    reads: dict[int, tuple[Stamp, str]] = field(default_factory=dict)


def check_races(launches: Sequence[Launch], layout: Layout, *, limit: int = 20) -> tuple[str, ...]:
    """Faults found, each one sentence; empty when the list is free of them."""
    return _Checker(launches, layout).run(limit)


class _Checker:
    def __init__(self, launches: Sequence[Launch], layout: Layout) -> None:
        self._launches = launches
        self._layout = layout
        self._faults: list[str] = []
        values = (value for launch in launches for value in (*launch.reads, *launch.writes))
        self._places = {value: layout.place(value) for value in dict.fromkeys(values)}
        self._cells = cut_cells(self._places, _Cell)
        self._versions: dict[Value, int] = {}
        self._seen: dict[Value, tuple[tuple[Value, int], ...]] = {}

    def run(self, limit: int) -> tuple[str, ...]:
        for launch, when in zip(self._launches, stamp(self._launches), strict=True):
            if not launch.composed:
                self._check_operands(launch)
            for value in launch.reads:
                self._read(launch, when, value)
            for value in kept(launch, self._layout):
                self._read(launch, when, value)
            for value in launch.writes:
                self._write(launch, when, value)
            for value in launch.writes:
                sources = self._layout.view_of(value)
                if sources:
                    self._seen[value] = tuple((s, self._versions.get(s, 0)) for s in sources)
            if len(self._faults) >= limit:
                break
        return tuple(dict.fromkeys(self._faults))

    def _check_operands(self, launch: Launch) -> None:
        for target in launch.writes:
            for source in launch.reads:
                if source == target or (source, target) in launch.in_place:
                    continue
                if _overlap(self._places[source], self._places[target]):
                    self._faults.append(
                        f"{launch.label}: output `{target}` shares bytes with input `{source}`"
                    )

    def _read(self, launch: Launch, when: Stamp, value: Value) -> None:
        for cell in self._cells[value]:
            if cell.value is None and self._layout.persistent(value):
                cell.value = value
            if cell.value != value:
                found = "nothing yet" if cell.value is None else f"`{cell.value}` of {cell.writer}"
                self._faults.append(f"{launch.label} reads `{value}`, its bytes hold {found}")
                return
            if cell.write is not None and not before(cell.write, when):
                self._faults.append(
                    f"{launch.label} reads `{value}` too early: {cell.writer} may still write it"
                )
                return
            cell.reads[when.stream] = (when, launch.label)
        for source, version in self._seen.get(value, ()):
            if self._versions.get(source, 0) != version:
                self._faults.append(
                    f"{launch.label} reads `{value}`, a stale view: `{source}` changed since"
                )
                return

    def _write(self, launch: Launch, when: Stamp, value: Value) -> None:
        for cell in self._cells[value]:
            if cell.write is not None and cell.write is not when and not before(cell.write, when):
                self._faults.append(
                    f"{launch.label} writes `{value}` over `{cell.value}` while {cell.writer} may run"
                )
                return
            for read, reader in cell.reads.values():
                if read is not when and not before(read, when):
                    self._faults.append(
                        f"{launch.label} writes `{value}` while {reader} may still read `{cell.value}`"
                    )
                    return
            cell.value, cell.write, cell.writer = value, when, launch.label
            cell.reads = {}
        self._versions[value] = self._versions.get(value, 0) + 1


def kept(launch: Launch, layout: Layout) -> tuple[Value, ...]:
    """What a launch writes in part: the rows that are there already must still be there."""
    if not launch.continues:
        return ()
    return tuple(v for v in launch.writes if v not in launch.reads and not layout.one_tile(v))


def _overlap(one: Place, other: Place) -> bool:
    return one.arena == other.arena and one.start < other.end and other.start < one.end


def cut_cells(places: Mapping[Value, Place], make: Callable[[], C]) -> dict[Value, tuple[C, ...]]:
    """Elementary intervals of all places, one `make()` each; a value gets those that it covers."""
    edges: dict[str, set[int]] = {}
    for place in places.values():
        assert place.start < place.end, "a value without bytes"
        edges.setdefault(place.arena, set()).update((place.start, place.end))
    index: dict[str, dict[int, int]] = {}
    cells: dict[str, list[C]] = {}
    for arena, cuts in edges.items():
        ordered = sorted(cuts)
        index[arena] = {edge: number for number, edge in enumerate(ordered)}
        cells[arena] = [make() for _ in ordered]
    return {
        value: tuple(
            cells[place.arena][index[place.arena][place.start] : index[place.arena][place.end]]
        )
        for value, place in places.items()
    }
