"""Faults in a plan: a test may plant them, nobody is served by them, and one that cannot happen is refused."""

from dataclasses import replace

import pytest

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.faults import Fault
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import BadPlan, plan_from_json, plan_to_json
from firmtoken.compiler.verify import verify


def planted(plan: Plan, **fields: object) -> Plan:
    fault = Fault(**{"kind": "stall", "op": "gdn", **fields})  # type: ignore[arg-type]  # test shorthand
    return replace(plan, faults=(fault,))


def test_a_compiled_plan_has_no_faults_and_one_with_faults_is_refused(tiny_plan: Plan) -> None:
    assert tiny_plan.faults == ()
    with pytest.raises(PlanRefused, match="lets 1 things go wrong: `faults` are for tests"):
        verify(planted(tiny_plan))
    verify(planted(tiny_plan), allow_faults=True)


def test_faults_survive_json(tiny_plan: Plan) -> None:
    plan = planted(tiny_plan, program="decode", layer=2, step=7, kind="slow", seconds=0.5)
    assert plan_from_json(plan_to_json(plan)) == plan
    with pytest.raises(BadPlan, match="explode"):
        plan_from_json(plan_to_json(planted(tiny_plan, kind="explode")))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"op": "gemm"}, "no `gemm` is launched in any program"),
        ({"program": "encode"}, "no `gdn` is launched in encode"),
        ({"program": "park"}, "no `gdn` is launched in park"),
        ({"layer": 3}, "no `gdn` is launched in any program, layer 3"),
        ({"layer": 8}, "no `gdn` is launched in any program, layer 8"),
        ({"step": 0}, "launches are counted from 1, not from 0"),
        ({"kind": "slow", "seconds": -1.0}, "nothing takes -1.0 s"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(
    tiny_plan: Plan, fields: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PlanRefused) as refused:
        verify(planted(tiny_plan, **fields), allow_faults=True)
    assert refused.value.faults == (f"fault 0: {sentence}",)
