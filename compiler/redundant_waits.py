"""Which waits of a plan order nothing that matters: left out, `verify` would not object (D5).

What matters is found as the checker finds it: a read follows the write that it means, a write follows the write and
the reads before it, and a closed program forks and joins. A wait is needed where leaving it out loses one of those.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from firmtoken.compiler.happens_before import Launch, before, stamp
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.compiler.race import Layout, cut_cells, kept
from firmtoken.compiler.runs import Run, ahead_runs, compositions, program_runs, short_kinds
from firmtoken.compiler.verify import layout_of

Order = tuple[int, int]
"""Numbers of two launches on different streams: the first must be done before the second starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedundantWait:
    """A wait of a step that not all of its launches need."""

    step: str
    """`program.op`."""
    event: str
    first_chunk: bool
    """The first chunk's launch needs it, those of later chunks do not; else no launch does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A wait of one launch for an event that was recorded before."""

    at: int
    """Number of the launch."""
    step: str
    event: Value
    again: bool
    """The launch's stream has waited for this very record before."""


def redundant_waits(plan: Plan) -> tuple[RedundantWait, ...]:
    """By step and event, in the order of the programs."""
    kinds, layout = short_kinds(plan.model.layer_kinds), layout_of(plan)
    programs = tuple(program_runs(plan, kinds))
    needed: dict[tuple[str, str], bool] = {}
    repeated: set[tuple[str, str]] = set()
    for run in (*programs, *compositions(plan, kinds), *ahead_runs(plan, kinds)):
        orders = needed_orders(run, layout)
        for wait in waits_of(run):
            key = (wait.step, wait.event.name)
            if wait.again:
                repeated |= {key} if run in programs else set()
            elif not needed.setdefault(key, False):
                needed[key] = is_needed(wait, run, orders)
    return tuple(
        RedundantWait(step=step, event=event, first_chunk=needs)
        for (step, event), needs in needed.items()
        if not needs or (step, event) in repeated
    )


def waits_of(run: Run) -> Iterator[Wait]:
    """Every wait of every launch, but for those for events that nobody has recorded by then: they order nothing."""
    recorded: dict[Value, int] = {}
    waited: dict[str, set[tuple[Value, int]]] = {}
    for at, launch in enumerate(run.launches):
        seen = waited.setdefault(launch.stream, set())
        step = launch.label.partition("(")[0]
        for event in launch.waits:
            if event in recorded:
                again = (event, recorded[event]) in seen
                seen.add((event, recorded[event]))
                yield Wait(at=at, step=step, event=event, again=again)
        for event in launch.records:
            recorded[event] = at


def is_needed(wait: Wait, run: Run, orders: Sequence[Order]) -> bool:
    """Whether an order is lost without it."""
    stamps = stamp(without_wait(run.launches, wait))
    return any(not before(stamps[first], stamps[second]) for first, second in orders)


def without_wait(launches: Sequence[Launch], wait: Wait) -> tuple[Launch, ...]:
    """The launches, one of which does not wait for one event."""
    launch = launches[wait.at]
    hasty = replace(launch, waits=tuple(event for event in launch.waits if event != wait.event))
    return (*launches[: wait.at], hasty, *launches[wait.at + 1 :])


@dataclass(slots=True)
class _Touched:
    write: int | None = None
    reads: list[int] = field(default_factory=list)


def needed_orders(run: Run, layout: Layout) -> tuple[Order, ...]:
    """Between launches of different streams: all that the values' places ask for, and fork and join."""
    launches = run.launches
    values = {value for launch in launches for value in (*launch.reads, *launch.writes)}
    cells = cut_cells({value: layout.place(value) for value in values}, _Touched)
    pairs: dict[Order, None] = {}

    def follow(first: int | None, second: int) -> None:
        if first is not None and launches[first].stream != launches[second].stream:
            pairs[first, second] = None

    for at, launch in enumerate(launches):
        for value in (*launch.reads, *kept(launch, layout)):
            for cell in cells[value]:
                follow(cell.write, at)
                cell.reads.append(at)
        for value in launch.writes:
            for cell in cells[value]:
                for earlier in (cell.write, *cell.reads):
                    follow(earlier, at)
                cell.write, cell.reads = at, []
    return (*pairs, *(_fork_and_join(launches) if run.closed else ()))


def _fork_and_join(launches: Sequence[Launch]) -> Iterator[Order]:
    main = [at for at, launch in enumerate(launches) if launch.stream == "main"]
    for at, launch in enumerate(launches):
        if launch.stream != "main":
            yield main[0], at
            yield at, main[-1]
