"""A layer's misses in waves: which plans take them, how the ring is cut, and that every way to break it is noticed."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.compiler.refused import faults

from firmtoken.compiler import fits, slot_split
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_from_json, plan_to_json
from firmtoken.compiler.program import Body, BoundStep, Item, Loop, Program, Step, Value
from firmtoken.compiler.slot_split import NoSlots, exact_slots, fill_slots
from firmtoken.compiler.steps import map_bodies, map_steps, steps_of
from firmtoken.compiler.unroll import describe_step, unroll
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

PlanOf = Callable[..., Plan]
SPANS = ("prefill", "extend")
MEMORY = "hardware.cpu.memory=160MiB"


@pytest.fixture(scope="module")
def minimax() -> ModelFacts:
    _, facts = describe_model(load_profile("ft:4090-minimax").profile)
    return facts


@pytest.fixture(scope="module", params=[2, 4, 6])
def waved(request: pytest.FixtureRequest) -> Plan:
    """The embedded model with limits at which waves pay, in 2, 4 and 6 of them."""
    ring = {2: 20, 4: 10, 6: 8}[request.param]
    wish = ("experts.slots=104", "schedule.prefill_chunk=128")
    whole = compile_profile(load_profile("ft:tiny-cpu", (*wish, MEMORY)).profile, CARDS)
    # One slot less than staging at once takes.
    memory = whole.memory.device.total - whole.experts.slot_bytes
    profile = load_profile("ft:tiny-cpu", (*wish, f"hardware.cpu.memory={memory}B")).profile
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slot_split, "STAGING_SLOTS", 1)
        patched.setattr(slot_split, "RING_SLOTS", ring)
        patched.setattr(fits, "HIDDEN_SHARE", 0.0)
        plan = compile_profile(profile, CARDS)
    assert plan.programs.prefill.bounds["waves"] == request.param
    return plan


def with_program(plan: Plan, name: str, program: Program) -> Plan:
    return replace(plan, programs=replace(plan.programs, **{name: program}))


def with_waves(plan: Plan, waves: int) -> Plan:
    for name in SPANS:
        program = dict(plan.programs.named())[name]
        bounds = {**program.bounds, "waves": waves}
        plan = with_program(plan, name, replace(program, bounds=bounds))
    return plan


# How the ring is cut.


@pytest.mark.parametrize(
    ("slots", "waves", "ring"),
    [
        (62, 4, 128),  # 255 missing
        (62 * 20, 4, 118),  # 236: 59 in each wave
        (62 * 64, 4, 96),
        (62 * 65, 4, 96),  # 191: the last wave has one less
        (62 * 128, 2, 128),
        (62 * 127, 4, 66),  # 129: two waves would need a ring of 130
        (62 * 255, 2, 2),
    ],
)
def test_waves_are_the_fewest_even_number_and_the_ring_has_no_slot_too_many(
    minimax: ModelFacts, slots: int, waves: int, ring: int
) -> None:
    split = exact_slots(minimax, 4, slots, "waves")
    assert (split.waves, split.staging_slots, split.ring) == (waves, ring, "waves")
    missing = 256 - min(split.slots_per_layer)
    assert waves * ring // 2 >= missing > waves * (ring // 2 - 1)


def test_the_most_slots_are_found_whatever_the_number_of_waves(minimax: ModelFacts) -> None:
    for have in (*range(100, 400, 7), *range(7_800, 8_200, 13), 15_000, 16_500):
        found = fill_slots(minimax, 4, have, "waves")
        needs = {
            slots: slots + exact_slots(minimax, 4, slots, "waves").staging_slots + 32
            for slots in range(max(62, min(have, 15_872) - 200), min(have, 15_872) + 1)
        }
        fitting = [slots for slots, need in needs.items() if need <= have]
        if isinstance(found, NoSlots):
            assert not fitting and found.needed > have
        else:
            assert sum(found.slots_per_layer) == max(fitting)


def test_too_few_slots_say_how_many_would_do(minimax: ModelFacts) -> None:
    short = fill_slots(minimax, 4, 221, "waves")
    assert short == NoSlots(needed=62 + 32 + 128)
    assert not isinstance(fill_slots(minimax, 4, 222, "waves"), NoSlots)


# Which plans take waves, and why.


def test_minimax_on_a_4090_stages_in_waves_and_says_what_that_saves(plan_of: PlanOf) -> None:
    plan = plan_of("4090-minimax")
    assert plan.experts.ring == "waves" and plan.programs.extend.bounds["waves"] == 4
    assert plan.schedule.prefill_span == plan.schedule.moe_chunk
    words = "118 slots stage a layer's misses in 4 waves, where staging them at once takes 472"
    assert plan.experts.because.endswith(words)
    staging = next(line for line in plan.memory.device.lines if line.name == "experts.staging")
    assert staging.because == (
        "both halves of a ring that a layer's misses pass in 4 waves, for prefill"
    )


@pytest.mark.parametrize(
    ("profile", "overrides", "words"),
    [
        ("pro6000-minimax", (), "180 slots stage a layer's misses at once, too few for waves"),
        (
            "4090-minimax",
            ("schedule.prefill_span=16k",),
            "since in waves a span is one chunk of 8,192 tokens",
        ),
        (
            "4090-qwen",
            ("hardware.gpu.memory=12GiB", "serving.context=32k", "hardware.link.h2d=12GB/s"),
            "in waves each chunk streams the bank, and 2,048 tokens hide too little of it",
        ),
    ],
)
def test_a_plan_that_stages_whole_layers_says_why(
    plan_of: PlanOf, profile: str, overrides: tuple[str, ...], words: str
) -> None:
    plan = plan_of(profile, *overrides)
    assert plan.experts.ring == "whole" and words in plan.experts.because
    assert all("waves" not in program.bounds for _, program in plan.programs.named())


def test_explicit_slots_are_staged_at_once_where_that_fits_else_in_waves(plan_of: PlanOf) -> None:
    few = plan_of("4090-minimax", "experts.slots=868")
    assert (few.experts.slots, few.experts.ring, few.experts.staging_slots) == (868, "whole", 484)
    words = "484 slots stage a layer's misses at once: they fit, and waves would leave their room"
    assert words in few.experts.because
    many = plan_of("4090-minimax", "experts.slots=1240")
    assert (many.experts.slots, many.experts.ring, many.experts.staging_slots) == (
        *(1240, "waves"),
        118,
    )


def test_where_no_prompt_is_longer_than_a_chunk_waves_cost_nothing(plan_of: PlanOf) -> None:
    wish = ("hardware.gpu.memory=12GiB", "serving.context=2k")
    assert plan_of("4090-qwen", *wish).experts.ring == "waves"


def test_more_context_never_leaves_more_experts(plan_of: PlanOf) -> None:
    rows = plan_of("4090-minimax").frontier
    slots = [row.slots for row in rows]
    assert slots == sorted(slots, reverse=True)


# What the programs do.


def fetched(plan: Plan, name: str, layers: int) -> Iterator[tuple[str, Value]]:
    """(op, the staging half or map that it is about), in order."""
    program = dict(plan.programs.named())[name]
    for item in unroll(program, plan.model.layer_kinds[:layers]):
        if isinstance(item, BoundStep) and item.step.op in ("fetch", "moe_down"):
            staged = [v for v in (*item.reads, *item.writes) if v.name == "staged"]
            yield item.step.op, staged[0]


def test_a_half_is_filled_again_as_soon_as_its_experts_are_done(plan_of: PlanOf) -> None:
    found = [
        f"{op} {value.index[0]}.{value.index[1]}"
        for op, value in fetched(plan_of("4090-minimax"), "prefill", 2)
    ]
    assert found == [
        *("fetch 0.0", "fetch 0.1"),
        *("moe_down 0.0", "fetch 0.2", "moe_down 0.1", "fetch 0.3"),
        *("moe_down 0.2", "fetch 1.0", "moe_down 0.3", "fetch 1.1"),
        *("moe_down 1.0", "fetch 1.2", "moe_down 1.1", "fetch 1.3"),
        *("moe_down 1.2", "moe_down 1.3"),
    ]


def test_a_step_says_its_wave_to_people(plan_of: PlanOf) -> None:
    plan = plan_of("4090-minimax")
    flat = unroll(plan.programs.prefill, plan.model.layer_kinds[:2])
    words = [describe_step(item, "prefill") for item in flat if isinstance(item, BoundStep)]
    assert "`moe_down` (layer 1, wave 3 of prefill, stream `main`)" in words


def test_only_resolve_is_told_its_wave_and_plans_go_through_json(waved: Plan) -> None:
    assert plan_from_json(plan_to_json(waved)) == waved
    told = [step for name in SPANS for step in steps_of(getattr(waved.programs, name))]
    assert {step.op for step in told if step.indices} == {"resolve"}
    assert plan_to_json(waved).count(b'"indices"') == sum(bool(step.indices) for step in told)


# How it may break.


def test_one_half_instead_of_two_is_clobbered(waved: Plan) -> None:
    buffers = tuple(
        replace(row, ring=(0, 1)) if row.name == "staged" else row for row in waved.buffers
    )
    found = faults(replace(waved, buffers=buffers))
    assert any("reads `staged[0,0]`, its bytes hold `staged[0,1]`" in fault for fault in found)


@pytest.mark.parametrize("name", SPANS)
def test_a_fetch_one_wave_too_early_is_clobbered(waved: Plan, name: str) -> None:
    def hasty(body: Body) -> Body:
        def swap(item: Item) -> Item:
            if not isinstance(item, Loop) or item.loop != "w":
                return item
            return replace(item, body=(*item.body[2:], *item.body[:2]))

        return tuple(map(swap, body))

    program = dict(waved.programs.named())[name]
    broken = with_program(waved, name, map_bodies(program, hasty))
    if name == "extend" and waved.programs.extend.bounds["waves"] == 2:
        assert faults(broken) == ()  # both halves are filled once, before the loop
    else:
        assert any("`staged[" in fault for fault in faults(broken))


def test_every_dropped_wait_is_noticed(waved: Plan) -> None:
    events = {
        (name, event)
        for name in SPANS
        for step in steps_of(getattr(waved.programs, name))
        for event in step.waits
    }
    assert {event for _, event in events} >= {"prefill.fetched[l,w]", "extend.fetched[l,w]"}
    silent = []
    for name, event in sorted(events):
        program = map_steps(
            getattr(waved.programs, name),
            lambda step, event=event: replace(  # type: ignore[misc]  # binds the loop variable
                step, waits=tuple(wait for wait in step.waits if wait != event)
            ),
        )
        if not faults(with_program(waved, name, program)):
            silent.append((name, event))
    # With two waves the template of the third is never unrolled.
    unused = {"extend.resolved[l,w+2]", "prefill.resolved[l,w+2]"}
    two = waved.programs.prefill.bounds["waves"] == 2
    assert {event for _, event in silent} == (unused if two else set())


def test_a_prefill_that_holds_nothing_makes_a_view_of_each_wave_stale(waved: Plan) -> None:
    program = map_steps(waved.programs.prefill, lambda step: replace(step, holds=()))
    found = faults(with_program(waved, "prefill", program))
    assert any("prefill.map[" in fault and "stale view" in fault for fault in found)


def test_rows_that_a_later_wave_would_lose_are_noticed(waved: Plan) -> None:
    offset = next(row.offset for row in waved.buffers if row.name == "prefill.a")
    buffers = tuple(
        replace(row, offset=offset) if row.name == "prefill.rows" else row for row in waved.buffers
    )
    assert any("prefill.rows" in fault for fault in faults(replace(waved, buffers=buffers)))


def test_each_later_wave_is_said_to_keep_the_rows_of_the_earlier_ones(waved: Plan) -> None:
    for name in SPANS:
        flat = unroll(getattr(waved.programs, name), waved.model.layer_kinds)
        downs = [i for i in flat if isinstance(i, BoundStep) and i.step.op == "moe_down"]
        rows = Value(f"{name}.rows")
        assert all(rows in item.writes for item in downs)
        assert [rows in item.reads for item in downs] == [item.at["w"] > 0 for item in downs]


def test_an_odd_number_of_waves_runs_into_its_own_halves(waved: Plan) -> None:
    odd = with_waves(waved, waved.programs.prefill.bounds["waves"] + 1)
    assert any("`staged[" in fault for fault in faults(odd))


def test_fewer_waves_than_a_layer_may_miss_are_refused(waved: Plan) -> None:
    waves = waved.programs.prefill.bounds["waves"] - 2
    if waves:
        found = faults(with_waves(waved, waves))
        half = waved.experts.staging_slots // 2
        assert found == tuple(
            f"a layer may miss 19 experts, a half of the staging range holds {half}, {name} fills it {waves} times"
            for name in SPANS
        )


def test_an_index_that_the_op_does_not_take_is_refused(waved: Plan) -> None:
    def tell(step: Step) -> Step:
        return replace(step, indices={"wave": "l"}) if step.op == "route" else step

    broken = with_program(waved, "extend", map_steps(waved.programs.extend, tell))
    assert "extend.route: op takes no index `wave`" in faults(broken)
