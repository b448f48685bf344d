"""Every way to break a plan is objected to, and the shipped plans are not."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.places import Buffer
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Program, Step
from firmtoken.compiler.steps import map_steps, steps_of
from firmtoken.compiler.verify import verify

SHIPPED = ("tiny-cpu", "tiny-cpu-resident", "4090-qwen", "h200-qwen")


def faults(plan: Plan) -> tuple[str, ...]:
    try:
        verify(plan)
    except PlanRefused as refused:
        return refused.faults
    return ()


def with_program(plan: Plan, name: str, program: Program) -> Plan:
    return replace(plan, programs=replace(plan.programs, **{name: program}))


def with_steps(plan: Plan, name: str, change: Callable[[Step], Step]) -> Plan:
    program = dict(plan.programs.named())[name]
    return with_program(plan, name, map_steps(program, change))


def with_buffer(plan: Plan, name: str, **fields: object) -> Plan:
    buffers = tuple(
        replace(row, **fields) if row.name == name else row  # type: ignore[arg-type]  # test shorthand
        for row in plan.buffers
    )
    return replace(plan, buffers=buffers)


def buffer(plan: Plan, name: str) -> Buffer:
    return next(row for row in plan.buffers if row.name == name)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_plans_hold(name: str, plan_of: Callable[..., Plan]) -> None:
    assert faults(plan_of(name)) == ()


def events(plan: Plan) -> Iterator[tuple[str, str]]:
    for name, program in plan.programs.named():
        for step in steps_of(program):
            for event in step.waits:
                yield name, event


def test_every_dropped_wait_is_objected_to(tiny_plan: Plan) -> None:
    dropped = list(dict.fromkeys(events(tiny_plan)))
    assert len(dropped) >= 7
    silent = []
    for name, event in dropped:
        broken = with_steps(
            tiny_plan,
            name,
            lambda step, event=event: replace(  # type: ignore[misc]  # binds the loop variable
                step, waits=tuple(wait for wait in step.waits if wait != event)
            ),
        )
        if not faults(broken):
            silent.append((name, event))
    assert silent == []


@pytest.mark.parametrize("name", ["prefill", "extend", "decode"])
def test_a_program_that_does_not_wait_for_snapshots_is_objected_to(
    name: str, tiny_plan: Plan
) -> None:
    program = dict(tiny_plan.programs.named())[name]
    found = faults(with_program(tiny_plan, name, replace(program, entry_waits=())))
    assert any("snap" in fault or "state" in fault for fault in found)


def test_a_decode_step_that_ignores_a_hold_makes_a_view_stale(tiny_plan: Plan) -> None:
    kernels = tuple(
        replace(row, respects_holds=False) if row.op == "admit" else row
        for row in tiny_plan.kernels
    )
    assert any("stale view" in fault for fault in faults(replace(tiny_plan, kernels=kernels)))


def test_a_prefill_that_holds_nothing_makes_a_view_stale(tiny_plan: Plan) -> None:
    broken = with_steps(tiny_plan, "prefill", lambda step: replace(step, holds=()))
    assert any("stale view" in fault for fault in faults(broken))


def test_one_staging_half_instead_of_two_is_clobbered(tiny_plan: Plan) -> None:
    assert any("staged" in fault for fault in faults(with_buffer(tiny_plan, "staged", ring=(1,))))


def test_hidden_states_parked_inside_the_arena_are_clobbered(tiny_plan: Plan) -> None:
    broken = with_buffer(tiny_plan, "prefill.hid", space="activations", stride=(0,))
    assert any("prefill.hid" in fault for fault in faults(broken))


def test_every_forced_overlap_of_values_that_live_together_is_objected_to(tiny_plan: Plan) -> None:
    broken = with_buffer(tiny_plan, "prefill.h", offset=buffer(tiny_plan, "prefill.y").offset)
    assert any("prefill.h" in fault for fault in faults(broken))


def test_a_value_that_leaves_its_space_is_refused(tiny_plan: Plan) -> None:
    end = next(space.bytes for space in tiny_plan.spaces if space.name == "activations")
    found = faults(with_buffer(tiny_plan, "decode.h", offset=end))
    assert found[0].startswith("buffer `decode.h` ends at")


def test_a_line_shrunk_by_one_byte_is_refused(tiny_plan: Plan) -> None:
    device = tiny_plan.memory.device
    lines = tuple(
        replace(line, bytes=line.bytes - 1) if line.name == "kv_pages" else line
        for line in device.lines
    )
    memory = replace(tiny_plan.memory, device=replace(device, lines=lines))
    found = faults(replace(tiny_plan, memory=memory))
    assert any("lines sum to" in fault for fault in found)
    assert any("space `kv_pages`" in fault for fault in found)


def test_a_missing_sentinel_page_is_refused(tiny_plan: Plan) -> None:
    cache = replace(tiny_plan.kv_cache, pages=tiny_plan.kv_cache.pages - 1)
    assert any("sentinel" in fault for fault in faults(replace(tiny_plan, kv_cache=cache)))


def test_an_unknown_op_is_refused(tiny_plan: Plan) -> None:
    broken = with_steps(
        tiny_plan,
        "decode",
        lambda step: replace(step, op="frobnicate") if step.op == "route" else step,
    )
    assert "decode: unknown op `frobnicate`" in faults(broken)


def test_a_kernel_that_the_plan_does_not_list_is_refused(tiny_plan: Plan) -> None:
    broken = with_steps(tiny_plan, "decode", lambda step: replace(step, kernel="other"))
    assert any(
        "kernel `other` is not among the plan's kernels" in fault for fault in faults(broken)
    )


def test_a_kernel_that_ignores_its_stream_is_refused(tiny_plan: Plan) -> None:
    kernels = tuple(
        replace(row, ignores_stream=True) if row.op == "linear" else row
        for row in tiny_plan.kernels
    )
    found = faults(replace(tiny_plan, kernels=kernels))
    assert any("ignores its stream" in fault for fault in found)


def test_two_weights_in_the_same_bytes_are_refused(tiny_plan: Plan) -> None:
    first, second, *rest = tiny_plan.weights
    broken = replace(tiny_plan, weights=(first, replace(second, offset=first.offset), *rest))
    assert any("overlaps the one before it" in fault for fault in faults(broken))


def test_a_context_that_the_pool_cannot_hold_is_refused(tiny_plan: Plan) -> None:
    context = replace(tiny_plan.context, effective=tiny_plan.kv_cache.tokens + 1)
    assert any("the pool" in fault for fault in faults(replace(tiny_plan, context=context)))
