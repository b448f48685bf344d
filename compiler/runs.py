"""Which launches `verify` reads: each program whole, and the compositions of D5 on a shorter model.

A dependence spans at most a ring of two layers and one period of layer kinds, so two periods and three layers show
every one of them (prototype.md 1.4); the tests check whole models.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from firmtoken.compiler.happens_before import Launch
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.sessions import cards_of, inline, session
from firmtoken.compiler.steps_ahead import steps_ahead
from firmtoken.compiler.unroll import layer_period, unroll

MIN_LAYERS_BEYOND_PERIODS = 3
CHUNKS_OF_A_PROGRAM, CHUNKS_OF_A_COMPOSITION = 2, 3
TILES_OF_A_PROGRAM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Launches in issue order."""

    name: str
    launches: tuple[Launch, ...]
    closed: bool
    """Side streams must fork from `main` and join it again."""


def checked_runs(plan: Plan) -> Iterator[Run]:
    """Decode, prefill and extend whole; then all programs one after another, with decode steps at every yield.

    Steps that may run ahead of their tokens are a composition of their own.
    """
    kinds = plan.model.layer_kinds
    yield from program_runs(plan, kinds)
    yield from compositions(plan, short_kinds(kinds))
    yield from ahead_runs(plan, short_kinds(kinds))


def program_runs(plan: Plan, kinds: tuple[str, ...]) -> Iterator[Run]:
    """Each program alone, for a model of these layers."""
    cards, bounds = cards_of(plan.kernels), plan.programs.prefill.bounds
    chunks, tiles = (
        min(CHUNKS_OF_A_PROGRAM, bounds["chunks"]),
        min(TILES_OF_A_PROGRAM, bounds["tiles"]),
    )
    for name, program in plan.programs.named():
        if name == "park":
            continue  # it has no meaning alone: the compositions hold it
        long = name == "prefill"
        flat = unroll(
            program, kinds, chunks=chunks if long else 1, tiles=(tiles,) * chunks if long else ()
        )
        launches = tuple(inline(name, program, flat, cards))
        yield Run(name=name, launches=launches, closed=program.closed)


def compositions(plan: Plan, kinds: tuple[str, ...]) -> Iterator[Run]:
    """All programs one after another, for a model of these layers: without snapshots, and with all of them.

    A decode step at a yield is one launch of `main`, so it adds no order between others, and a run with all of them
    proves every run with fewer. A snapshot does add order: the next step on `main` waits for the side stream.
    """
    chunks = min(CHUNKS_OF_A_COMPOSITION, plan.programs.prefill.bounds["chunks"])
    cards, programs = cards_of(plan.kernels), plan.programs
    bare = replace(programs, park=None)
    for name, some in (("session without snapshots", bare), ("session", programs)):
        if some is bare or programs.park is not None:
            launches = session(some, kinds, cards, chunks=chunks, tiles=1)
            yield Run(name=name, launches=launches, closed=False)


def ahead_runs(plan: Plan, kinds: tuple[str, ...]) -> Iterator[Run]:
    """Decode steps that are launched ahead of their tokens, which only those do that are replayed as graphs."""
    if not plan.programs.decode.captured:
        return
    chunks = min(CHUNKS_OF_A_COMPOSITION, plan.programs.prefill.bounds["chunks"])
    launches = steps_ahead(plan.programs, kinds, cards_of(plan.kernels), chunks=chunks)
    yield Run(name="steps ahead", launches=launches, closed=False)


def short_kinds(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The first layers of a model: all that a dependence can span."""
    return kinds[: 2 * layer_period(kinds) + MIN_LAYERS_BEYOND_PERIODS]
