"""Every way to break a plan is objected to, and the shipped plans are not."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.compiler.mutants import with_buffer, with_steps
from tests.compiler.refused import faults

from firmtoken.compiler.plan import Plan

SHIPPED = ("tiny-cpu", "tiny-cpu-resident", "4090-qwen", "h200-qwen")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_plans_hold(name: str, plan_of: Callable[..., Plan]) -> None:
    assert faults(plan_of(name)) == ()


def test_a_prefill_that_holds_nothing_makes_a_view_stale(tiny_plan: Plan) -> None:
    broken = with_steps(tiny_plan, ("prefill",), lambda step: replace(step, holds=()))
    assert any("stale view" in fault for fault in faults(broken))


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


def test_an_unknown_op_is_refused(tiny_plan: Plan) -> None:
    broken = with_steps(
        tiny_plan,
        ("decode",),
        lambda step: replace(step, op="frobnicate") if step.op == "route" else step,
    )
    assert "decode: unknown op `frobnicate`" in faults(broken)


def test_a_kernel_that_the_plan_does_not_list_is_refused(tiny_plan: Plan) -> None:
    broken = with_steps(tiny_plan, ("decode",), lambda step: replace(step, kernel="other"))
    assert any(
        "kernel `other` is not among the plan's kernels" in fault for fault in faults(broken)
    )


def test_two_weights_in_the_same_bytes_are_refused(tiny_plan: Plan) -> None:
    first, second, *rest = tiny_plan.weights
    broken = replace(tiny_plan, weights=(first, replace(second, offset=first.offset), *rest))
    assert any("overlaps the one before it" in fault for fault in faults(broken))


def test_a_context_that_the_pool_cannot_hold_is_refused(tiny_plan: Plan) -> None:
    context = replace(tiny_plan.context, effective=tiny_plan.kv_cache.tokens + 1)
    assert any("the pool" in fault for fault in faults(replace(tiny_plan, context=context)))
