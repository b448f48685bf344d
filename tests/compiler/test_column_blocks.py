"""The down projection of a chunk in blocks of columns: sizes, order, and that every way to break it is noticed (D6)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.compiler.refused import faults

from firmtoken.compiler.passes.bound_batches import COLUMN_BLOCKS, column_blocks
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.steps import map_steps
from firmtoken.compiler.unroll import unroll

PlanOf = Callable[..., Plan]
MOE = ("moe_gate_up", "moe_down", "combine")


def width(plan: Plan, name: str) -> int:
    shape = next(row.shape for row in plan.buffers if row.name == name)
    assert shape[0] == "pairs" and isinstance(shape[1], int)
    return shape[1]


@pytest.mark.parametrize(
    ("hidden", "blocks"), [(2048, 4), (3072, 4), (256, 4), (128, 2), (384, 2), (64, 1), (2000, 1)]
)
def test_blocks_are_whole_units_of_64_columns(hidden: int, blocks: int) -> None:
    assert column_blocks("cuda", hidden) == blocks
    assert column_blocks("cpu", hidden) == 1


@pytest.mark.parametrize("name", ["4090-qwen", "pro6000-minimax"])
def test_rows_of_a_chunk_are_a_fourth_as_wide_and_others_whole(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(name)
    hidden = int(plan.model.geometry["hidden_size"])
    assert plan.programs.prefill.bounds["columns"] == 4
    assert width(plan, "prefill.rows") == hidden // 4
    assert width(plan, "extend.rows") == width(plan, "decode.rows") == hidden
    for program in (plan.programs.decode, plan.programs.extend):
        assert "columns" not in program.bounds


def test_each_block_is_summed_before_the_next_takes_its_place(plan_of: PlanOf) -> None:
    plan = plan_of("4090-qwen")
    flat = unroll(plan.programs.prefill, plan.model.layer_kinds[:1])
    moe = [i for i in flat if isinstance(i, BoundStep) and i.step.op in MOE]
    assert [(item.step.op, item.indices) for item in moe] == [
        ("moe_gate_up", {}),
        *((op, {"block": block}) for block in range(4) for op in MOE[1:]),
    ]


def test_waves_need_all_columns_at_the_end(plan_of: PlanOf) -> None:
    plan = plan_of("4090-minimax")
    assert "columns" not in plan.programs.prefill.bounds
    assert width(plan, "prefill.rows") == plan.model.geometry["hidden_size"]


def test_a_block_waits_for_no_event_that_its_chunk_has_waited_for(plan_of: PlanOf) -> None:
    plan = plan_of("pro6000-minimax")
    flat = unroll(plan.programs.prefill, plan.model.layer_kinds[:2])
    waits = [
        (i.step.op, len(i.waits)) for i in flat if isinstance(i, BoundStep) and i.step.op in MOE
    ]
    assert {wait for wait in waits if wait[1]} == {("moe_gate_up", 1)}


def test_a_block_that_is_not_summed_in_time_is_noticed(plan_of: PlanOf) -> None:
    """Rows over the inputs that later blocks still read."""
    plan = plan_of("4090-qwen")
    offset = next(row.offset for row in plan.buffers if row.name == "prefill.a")
    buffers = tuple(
        replace(row, offset=offset) if row.name == "prefill.rows" else row for row in plan.buffers
    )
    assert any("prefill.a" in fault for fault in faults(replace(plan, buffers=buffers)))


def test_an_op_that_takes_no_block_is_not_told_one(plan_of: PlanOf) -> None:
    plan = plan_of("4090-qwen")
    prefill = map_steps(
        plan.programs.prefill,
        lambda step: replace(step, indices={"block": "l"}) if step.op == "moe_gate_up" else step,
    )
    broken = replace(plan, programs=replace(plan.programs, prefill=prefill))
    assert "prefill.moe_gate_up: op takes no index `block`" in faults(broken)


def test_the_cpu_gains_nothing_from_blocks(tiny_plan: Plan) -> None:
    assert COLUMN_BLOCKS["cpu"] == 1 and "columns" not in tiny_plan.programs.prefill.bounds
