"""The twelve faults of issue 5: each is objected to by name, in each kind of offload plan."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.compiler.mutants import MUTANTS, Mutant
from tests.compiler.offload_plans import OFFLOAD

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.race import check_races
from firmtoken.compiler.redundant_waits import waits_of, without_wait
from firmtoken.compiler.runs import compositions, short_kinds
from firmtoken.compiler.verify import layout_of, verify

PlanOf = Callable[..., Plan]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.parametrize("name", OFFLOAD)
def test_each_named_mutant_is_caught(name: str, mutant: Mutant, plan_of: PlanOf) -> None:
    plan = plan_of(*OFFLOAD[name])
    if mutant.hybrid and "linear" not in plan.model.layer_kinds:
        assert plan.programs.park is None
        return
    with pytest.raises(PlanRefused) as refused:
        verify(mutant.change(plan))
    faults = refused.value.faults
    assert any(re.search(mutant.objection, fault) for fault in faults), faults


@pytest.mark.parametrize("name", OFFLOAD)
def test_sample_to_embed_across_steps_is_caught(name: str, plan_of: PlanOf) -> None:
    """A host that does not wait for what was drawn reads old tokens, and overwrites a batch that is being read."""
    plan = plan_of(*OFFLOAD[name])
    layout = layout_of(plan)
    run = next(compositions(plan, short_kinds(plan.model.layer_kinds)))
    assert check_races(run.launches, layout) == ()
    turns = [wait for wait in waits_of(run) if wait.step == "host" and not wait.again]
    found = check_races(without_wait(run.launches, turns[0]), layout)
    assert found[0].endswith("reads `decode.tokens` too early: decode may still write it")
    first = next(wait for wait in waits_of(run) if wait.event.name == "host.enqueued")
    (unfed, *_) = check_races(without_wait(run.launches, first), layout)
    assert unfed == "decode reads `decode.batch` too early: host may still write it"


@pytest.mark.parametrize("side", ["device", "host"])
def test_every_line_shrunk_by_one_byte_is_caught(side: str, tiny_plan: Plan) -> None:
    ledger = getattr(tiny_plan.memory, side)
    for number, line in enumerate(ledger.lines):
        lines = [*ledger.lines]
        lines[number] = replace(line, bytes=line.bytes - 1)
        memory = replace(tiny_plan.memory, **{side: replace(ledger, lines=tuple(lines))})
        with pytest.raises(PlanRefused) as refused:
            verify(replace(tiny_plan, memory=memory))
        assert any(f"line `{line.name}`" in fault for fault in refused.value.faults), line.name
