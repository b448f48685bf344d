"""Two values in the same bytes: objected to exactly where both live at once, for every pair of a plan's activations.

What lives at once is found here by reachability over the launches, not with the checker's clocks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
from tests.compiler.offload_plans import OFFLOAD

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.happens_before import Launch
from firmtoken.compiler.placement import Placement, placement
from firmtoken.compiler.places import Buffer
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.compiler.race import Layout, Place, check_races
from firmtoken.compiler.runs import Run, compositions, program_runs
from firmtoken.compiler.verify import verify

PlanOf = Callable[..., Plan]
Pair = tuple[str, str]
Life = tuple[int, ...]
"""Numbers of the launches that touch a value from one fresh write on to the next."""
BYTES = 4


def layers(plan: Plan) -> tuple[str, ...]:
    """A period and one layer: every kind after every other."""
    kinds = plan.model.layer_kinds
    return kinds[: kinds.index("full") + 2]


def activations(plan: Plan) -> tuple[str, ...]:
    return tuple(row.name for row in plan.buffers if row.kind == "activation")


def earlier(launches: Sequence[Launch]) -> list[int]:
    """For each launch the set, as bits, of those that are surely done before it starts."""
    done: list[int] = []
    last: dict[str, int] = {}
    recorded: dict[Value, int] = {}
    for launch in launches:
        before = [last.get(launch.stream), *(recorded.get(event) for event in launch.waits)]
        mask = 0
        for number in before:
            if number is not None:
                mask |= done[number] | 1 << number
        done.append(mask)
        last[launch.stream] = len(done) - 1
        for event in launch.records:
            recorded[event] = len(done) - 1
    return done


def lives(launches: Sequence[Launch], name: str, layout: Layout) -> dict[Value, list[Life]]:
    """A launch that neither reads a value nor adds rows to it begins another life."""
    found: dict[Value, list[list[int]]] = {}
    for number, launch in enumerate(launches):
        for value in dict.fromkeys((*launch.reads, *launch.writes)):
            if value.name != name:
                continue
            adds = launch.continues and not layout.one_tile(value)
            fresh = value not in launch.reads and not adds
            if fresh or value not in found:
                found.setdefault(value, []).append([])
            found[value][-1].append(number)
    return {value: [tuple(life) for life in spans] for value, spans in found.items()}


def follows(life: Life, other: Life, done: Sequence[int], in_place: set[int]) -> bool:
    """Whether all of `life` is over before anything of `other` starts."""
    return all(
        done[later] >> number & 1 or (number == later and number in in_place)
        for number in life
        for later in other
    )


class Pairs:
    """Overlaps of two names' values in one run, everything else in bytes of its own."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self.launches = run.launches
        self.done = earlier(run.launches)
        self.places: Placement = placement(plan.buffers, plan.model.layer_kinds)
        self.layout = Layout(
            place=self.place,
            persistent=lambda value: False,
            view_of=lambda value: (),
            one_tile=self.places.one_tile,
        )
        self.lives = {name: lives(self.launches, name, self.layout) for name in activations(plan)}

    def touched(self) -> tuple[str, ...]:
        return tuple(name for name, found in self.lives.items() if found)

    def place(self, value: Value) -> Place:
        """Both names start at the same byte; a ring, or a place for each chunk, stays one, under the whole other."""
        row = self.places.buffer(value)
        if not row.index:
            return Place("shared", 0, BYTES * len(self.launches))
        slot = (self.places.span(value)[0] - row.offset) // row.bytes
        return Place("shared", BYTES * slot, BYTES * (slot + 1))

    def live_together(self, one: str, other: str) -> bool:
        for mine, theirs in product(self.lives[one].items(), self.lives[other].items()):
            one_place, other_place = self.place(mine[0]), self.place(theirs[0])
            if one_place.start >= other_place.end or other_place.start >= one_place.end:
                continue
            for life, their_life in product(mine[1], theirs[1]):
                if not self._apart(mine[0], life, theirs[0], their_life):
                    return True
        return False

    def _apart(self, one: Value, life: Life, other: Value, other_life: Life) -> bool:
        shared = set(life) & set(other_life)
        into = {at for at in shared if (one, other) in self.launches[at].in_place}
        back = {at for at in shared if (other, one) in self.launches[at].in_place}
        return follows(life, other_life, self.done, into) or follows(
            other_life, life, self.done, back
        )

    def objected(self, one: str, other: str) -> bool:
        names = {one, other}
        launches = [
            replace(
                launch,
                reads=tuple(value for value in launch.reads if value.name in names),
                writes=tuple(value for value in launch.writes if value.name in names),
            )
            for launch in self.launches
        ]
        return bool(check_races(launches, self.layout, limit=1))


def within_programs(plan: Plan) -> Iterator[tuple[Pairs, Pair]]:
    for run in program_runs(plan, layers(plan)):
        pairs = Pairs(run, plan)
        yield from ((pairs, pair) for pair in combinations(pairs.touched(), 2))


def across_programs(plan: Plan) -> Iterator[tuple[Pairs, Pair]]:
    """Decode steps run between the layers of a span; without snapshots there is the least order."""
    pairs = Pairs(next(compositions(plan, layers(plan))), plan)
    for one, other in combinations(pairs.touched(), 2):
        if one.partition(".")[0] != other.partition(".")[0]:
            yield pairs, (one, other)


@pytest.mark.parametrize("name", OFFLOAD)
def test_of_one_program_those_that_live_together_are_objected_to_and_no_others(
    name: str, plan_of: PlanOf
) -> None:
    judged = {True: 0, False: 0}
    for pairs, (one, other) in within_programs(plan_of(*OFFLOAD[name])):
        together = pairs.live_together(one, other)
        assert pairs.objected(one, other) == together, (one, other)
        judged[together] += 1
    assert judged[True] > 100 and judged[False] > 60, judged


@pytest.mark.parametrize("name", OFFLOAD)
def test_of_two_programs_those_that_live_together_are_objected_to_and_no_others(
    name: str, plan_of: PlanOf
) -> None:
    plan = plan_of(*OFFLOAD[name])
    found = set()
    for pairs, pair in across_programs(plan):
        together = pairs.live_together(*pair)
        assert pairs.objected(*pair) == together, pair
        if together:
            found.add(frozenset(pair))
    decode = [row for row in activations(plan) if row.startswith("decode.")]
    assert {frozenset((row, "prefill.hid")) for row in decode} <= found, "what a span parks"


def moved(plan: Plan, name: str, *, onto: str) -> Plan:
    """The plan with one buffer at the first byte of another."""
    target = next(row for row in plan.buffers if row.name == onto)

    def move(row: Buffer) -> Buffer:
        return replace(row, space=target.space, offset=target.offset) if row.name == name else row

    return replace(plan, buffers=tuple(map(move, plan.buffers)))


def refused(plan: Plan) -> tuple[str, ...]:
    try:
        verify(plan)
    except PlanRefused as refusal:
        return refusal.faults
    return ()


def packed_pairs(plan: Plan) -> Iterator[tuple[Pairs, Pair]]:
    packed = {row.name for row in plan.buffers if row.space == "activations"}
    for pairs, pair in within_programs(plan):
        if set(pair) <= packed and pairs.live_together(*pair):
            yield pairs, pair


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["tiny-cpu in chunks", "h200-minimax of 80 GiB"])
def test_a_plan_with_two_live_values_in_the_same_bytes_is_refused(
    name: str, every: int, plan_of: PlanOf
) -> None:
    """In CI each twelfth pair; by hand all."""
    plan = plan_of(*OFFLOAD[name])
    silent = [
        pair
        for _, pair in list(packed_pairs(plan))[::every]
        if not refused(moved(plan, pair[0], onto=pair[1]))
    ]
    assert silent == []


def test_rows_of_an_earlier_tile_must_outlive_the_next(plan_of: PlanOf) -> None:
    """`h` is filled tile by tile and read as a whole; what a tile needs for itself may not overwrite it."""
    plan = plan_of("4090-qwen", "schedule.prefill_chunk=4096")
    assert plan.programs.prefill.bounds["tiles"] == 2
    found = refused(moved(plan, "prefill.q", onto="prefill.h"))
    assert any("t=1) reads `prefill.h`, its bytes hold `prefill.q`" in fault for fault in found)
