"""Programs as launches for the checker: each alone, and the compositions of D5 (decode at every yield of a prefill).

The host is a stream of its own there: before each run it reads the tokens that the run before drew and writes the
run's batch, which `embed` reads. It adds no order between `main` and side streams, though today's engine does. Decode
steps that are launched ahead of their tokens are in `steps_ahead.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.happens_before import LEGACY_STREAM, Launch
from firmtoken.compiler.plan import Programs
from firmtoken.compiler.program import BoundStep, BoundYield, Flat, Program, Value
from firmtoken.compiler.unroll import bind_all, unroll

HOST = "host"
DRAWN, ENQUEUED = Value("host.drawn"), Value("host.enqueued")
"""A run's tokens are there; a run's batch is there, and its launches are on their streams."""
PHASE = {"decode": "decode", "prefill": "prefill", "extend": "prefill", "park": "prefill"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cards:
    """What the checker must know of the chosen kernels."""

    rows: Mapping[tuple[str, str, str], KernelChoice]
    """(op, phase, kernel) -> row."""

    def row(self, step: BoundStep, program: str) -> KernelChoice | None:
        """The row that a step names; `None` for a kernel that no row lists."""
        return self.rows.get((step.step.op, PHASE[program], step.step.kernel))


def cards_of(kernels: Sequence[KernelChoice]) -> Cards:
    """Rows by what a step names."""
    return Cards(rows={(row.op, row.phase, row.kernel): row for row in kernels})


def batch_of(program: str) -> Value:
    """What the host writes for a run of a program: token ids, positions, page tables."""
    return Value(f"{program}.batch")


def host_turn(name: str, drawn: str) -> Launch:
    """The host between two runs: it takes what `drawn` drew, and writes the batch of a run of `name`."""
    return Launch(
        label=f"host(after={drawn})" if drawn else "host",
        stream=HOST,
        reads=(Value(f"{drawn}.tokens"),) if drawn else (),
        writes=(batch_of(name),),
        waits=(DRAWN,),
        records=(ENQUEUED,),
    )


def launch_of(step: BoundStep, program: str, cards: Cards) -> Launch:
    """A bound step as the checker sees it."""
    row = cards.row(step, program)
    place = ",".join(f"{name}={value}" for name, value in step.at.items())
    pairs = row.in_place if row else ()
    return Launch(
        label=f"{program}.{step.step.op}({place})",
        stream=LEGACY_STREAM if row and row.ignores_stream else step.step.stream,
        reads=(*step.reads, batch_of(program)) if step.step.op == "embed" else step.reads,
        writes=step.writes,
        waits=step.waits,
        records=(*step.records, DRAWN) if step.step.op == "sample" else step.records,
        continues=step.continues,
        in_place=frozenset(
            (step.operands[source], step.operands[target])
            for source, target in pairs
            if source in step.operands and target in step.operands
        ),
    )


def inline(
    name: str,
    program: Program,
    flat: Flat,
    cards: Cards,
    at_yield: "Composed | None" = None,
    parked: tuple[Launch, ...] = (),
) -> Iterator[Launch]:
    """The launches of one run; at each yield the composed decode step, without what is held, and then `parked`."""
    entry = (*bind_all(program.entry_waits, {}), *(() if name == "park" else (ENQUEUED,)))
    held: set[Value] = set()
    for item in flat:
        if isinstance(item, BoundYield):
            if at_yield is not None:
                yield host_turn("decode", "decode")
                yield at_yield.step(frozenset(held), every_owner=False)
            yield from parked
            continue
        launch = launch_of(item, name, cards)
        if entry and launch.stream != "link":
            launch, entry = replace(launch, waits=(*entry, *launch.waits)), ()
        yield launch
        held |= set(item.holds)
        held -= set(item.drops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A captured program as one launch on `main`: an inner stream is not the outer stream of the same name."""

    label: str
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    waits: tuple[Value, ...]
    respects_holds: bool

    def step(self, held: frozenset[Value], *, every_owner: bool) -> Launch:
        """One run: what is held stays unwritten; outside a prefill it owns all sequences."""
        writes = self.writes
        if self.respects_holds:
            writes = tuple(value for value in writes if value not in held)
        reads = self.reads
        if every_owner:
            reads, writes = _both_owners(reads), _both_owners(writes)
        return Launch(
            label=self.label,
            stream="main",
            reads=reads,
            writes=writes,
            waits=self.waits,
            records=(DRAWN,),
            composed=True,
        )


def compose(name: str, program: Program, flat: Flat, cards: Cards) -> Composed:
    """Union of reads from outside and of all writes."""
    reads: dict[Value, None] = {batch_of(name): None}
    writes: dict[Value, None] = {}
    respects = True
    for item in flat:
        if isinstance(item, BoundYield):
            continue
        row = cards.row(item, name)
        if item.step.op == "admit" and not (row and row.respects_holds):
            respects = False
        for value in item.reads:
            if value not in writes:
                reads[value] = None
        writes |= dict.fromkeys(item.writes)
    return Composed(
        label=name,
        reads=tuple(reads),
        writes=tuple(writes),
        waits=(*bind_all(program.entry_waits, {}), ENQUEUED),
        respects_holds=respects,
    )


def _both_owners(values: tuple[Value, ...]) -> tuple[Value, ...]:
    both: dict[Value, None] = {}
    for value in values:
        both[value] = None
        if len(value.index) == 2:
            layer, owner = value.index
            both[Value(value.name, (layer, 1 - owner))] = None
    return tuple(both)


def _park(programs: Programs, kinds: Sequence[str], cards: Cards) -> tuple[Launch, ...]:
    if programs.park is None:
        return ()
    return tuple(inline("park", programs.park, unroll(programs.park, kinds), cards))


def session(
    programs: Programs, kinds: Sequence[str], cards: Cards, *, chunks: int, tiles: int
) -> tuple[Launch, ...]:
    """D D P park P D D extend park D, with a decode step and a park at every yield of each P."""
    decode = compose("decode", programs.decode, unroll(programs.decode, kinds), cards)
    prefill = unroll(programs.prefill, kinds, chunks=chunks, tiles=(tiles,) * chunks)
    extend = unroll(programs.extend, kinds)
    launches: list[Launch] = []
    drawn = [""]

    def turn(name: str) -> None:
        launches.append(host_turn(name, drawn[-1]))
        drawn.append(name)

    def run_decode() -> None:
        turn("decode")
        launches.append(decode.step(frozenset(), every_owner=True))

    park = _park(programs, kinds, cards)

    def run_park() -> None:
        launches.extend(replace(launch, reads=_both_owners(launch.reads)) for launch in park)

    def run_prefill() -> None:
        turn("prefill")
        launches.extend(inline("prefill", programs.prefill, prefill, cards, decode, park))

    def run_extend() -> None:
        turn("extend")
        launches.extend(inline("extend", programs.extend, extend, cards))

    run_decode()
    run_decode()
    run_prefill()
    run_park()
    run_prefill()
    run_decode()
    run_decode()
    run_extend()
    run_park()
    run_extend()
    run_park()
    run_decode()
    return tuple(launches)
