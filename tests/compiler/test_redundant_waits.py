"""Which waits a plan could do without: the list, and `verify`'s own word on every single one."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.compiler.mutants import with_program, with_steps
from tests.compiler.offload_plans import OFFLOAD, QUICK

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep, Program, Step
from firmtoken.compiler.redundant_waits import (
    RedundantWait,
    is_needed,
    needed_orders,
    redundant_waits,
    waits_of,
    without_wait,
)
from firmtoken.compiler.runs import Run, compositions, program_runs, short_kinds
from firmtoken.compiler.steps import steps_of
from firmtoken.compiler.unroll import unroll
from firmtoken.compiler.verify import check_run, layout_of, verify

PlanOf = Callable[..., Plan]
LATER_CHUNKS = RedundantWait(step="prefill.moe_gate_up", event="prefill.fetched", first_chunk=True)


def slow_but_for(names: tuple[str, ...]) -> list[object]:
    return [
        pytest.param(name, marks=() if name in names else pytest.mark.slow, id=name)
        for name in OFFLOAD
    ]


@pytest.mark.parametrize("name", OFFLOAD)
def test_only_later_chunks_of_shipped_plans_wait_in_vain(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(*OFFLOAD[name])
    assert plan.experts.placement == "offload"
    chunks = plan.programs.prefill.bounds["chunks"]
    assert redundant_waits(plan) == ((LATER_CHUNKS,) if chunks > 1 else ())


@pytest.mark.parametrize("name", ["tiny-cpu-resident", "4090-qwen", "h200-qwen", "5090-qwen"])
def test_a_resident_plan_has_no_wait_in_vain(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(name)
    assert any(program.entry_waits for _, program in plan.programs.named())
    assert redundant_waits(plan) == ()


def with_waits(plan: Plan, name: str, op: str, change: Callable[[Step], Step]) -> Plan:
    return with_steps(plan, (name,), lambda step: change(step) if step.op == op else step)


def test_a_wait_for_what_is_done_anyway_is_listed_as_needed_by_nobody(tiny_plan: Plan) -> None:
    idle = with_waits(
        tiny_plan,
        "decode",
        "shared_expert",
        lambda step: replace(step, waits=(*step.waits, "decode.admitted")),
    )
    assert redundant_waits(idle) == (
        RedundantWait(step="decode.shared_expert", event="decode.admitted", first_chunk=False),
    )
    verify(idle)


def waits(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Of steps that run: where a layer's misses come in two waves, those of a third never do."""
    for name, program in plan.programs.named():
        chunks = min(2, program.bounds["chunks"])
        flat = unroll(program, plan.model.layer_kinds, chunks=chunks, tiles=(1,) * chunks)
        run = {id(item.step) for item in flat if isinstance(item, BoundStep)}
        for step in steps_of(program):
            if id(step) in run:
                for event in step.waits:
                    yield name, step.op, event


def is_refused(plan: Plan) -> bool:
    try:
        verify(plan)
    except PlanRefused:
        return True
    return False


@pytest.mark.parametrize("name", OFFLOAD)
def test_a_wait_taken_from_a_step_is_objected_to(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(*OFFLOAD[name])
    dropped = list(dict.fromkeys(waits(plan)))
    assert len(dropped) >= 6
    silent = []
    for program, op, event in dropped:

        def forget(step: Step, event: str = event) -> Step:
            return replace(step, waits=tuple(wait for wait in step.waits if wait != event))

        if not is_refused(with_waits(plan, program, op, forget)):
            silent.append((program, op, event))
    assert silent == []


def without_entry_waits(program: Program) -> Program:
    return replace(program, entry_waits=())


@pytest.mark.parametrize("name", OFFLOAD)
def test_a_program_that_does_not_wait_on_entry_is_objected_to(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(*OFFLOAD[name])
    for program_name, program in plan.programs.named():
        if program.entry_waits:
            hasty = with_program(plan, program_name, without_entry_waits)
            assert is_refused(hasty), program_name


def objections(run: Run, plan: Plan) -> tuple[list[str], list[str]]:
    """Waits without which the checker objects; and those without which it does not, though the list needs them."""
    layout = layout_of(plan)
    assert list(check_run(run, layout)) == []
    orders = needed_orders(run, layout)
    objected, silent = [], []
    for wait in waits_of(run):
        needed = not wait.again and is_needed(wait, run, orders)
        hasty = replace(run, launches=without_wait(run.launches, wait))
        found = next(check_run(hasty, layout), None)
        if found is not None:
            objected.append(f"{wait.step} at {wait.at}: {found}")
        if needed != (found is not None):
            silent.append(f"{wait.step} at {wait.at}, {wait.event}: needed {needed}, {found}")
    return objected, silent


@pytest.mark.parametrize("name", slow_but_for(QUICK))
def test_each_single_wait_of_a_whole_program_is_needed_or_listed(
    name: str, plan_of: PlanOf
) -> None:
    plan = plan_of(*OFFLOAD[name])
    for run in program_runs(plan, plan.model.layer_kinds):
        objected, silent = objections(run, plan)
        assert silent == []
        waves = dict(plan.programs.named())[run.name].bounds.get("waves", 1)
        assert len(objected) == 2 * waves * len(plan.model.layer_kinds)
        idle = [wait for wait in waits_of(run) if wait.again]
        assert {(wait.step, wait.event.name) for wait in idle} <= {
            (LATER_CHUNKS.step, LATER_CHUNKS.event)
        }


@pytest.mark.parametrize("name", slow_but_for(("tiny-cpu", "pro6000-minimax")))
def test_each_single_wait_of_a_composition_is_needed_as_the_list_says(
    name: str, plan_of: PlanOf
) -> None:
    plan = plan_of(*OFFLOAD[name])
    for run in compositions(plan, short_kinds(plan.model.layer_kinds)):
        objected, silent = objections(run, plan)
        assert silent == []
        assert objected


def test_snapshots_at_every_yield_hide_a_wait_that_a_composition_without_them_needs(
    plan_of: PlanOf,
) -> None:
    """After a snapshot the next decode step waits for the side stream, and so for the copies before it."""
    plan = plan_of(*OFFLOAD["tiny-cpu in chunks"])
    layout = layout_of(plan)
    needed = {}
    for run in compositions(plan, short_kinds(plan.model.layer_kinds)):
        orders = needed_orders(run, layout)
        needed[run.name] = [
            is_needed(wait, run, orders)
            for wait in waits_of(run)
            if wait.event.name == "prefill.fetched" and not wait.again
        ]
    assert all(needed["session without snapshots"])
    assert not all(needed["session"])


def test_an_event_that_nobody_records_orders_nothing_and_is_refused(tiny_plan: Plan) -> None:
    lost = with_waits(
        tiny_plan, "decode", "route", lambda step: replace(step, waits=("decode.nowhere[l]",))
    )
    with pytest.raises(PlanRefused) as refused:
        verify(lost)
    assert "decode.route: waits for `decode.nowhere`, which no step records" in refused.value.faults
