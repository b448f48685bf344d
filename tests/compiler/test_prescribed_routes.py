"""Prescribed routes are part of the plan: rows with bytes in the ledger, and a step behind each router."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.unroll import unroll

PlanOf = Callable[..., Plan]
ASKED = "model.source={synthetic: {seed: 1, routes: q36}}"
NOT_ASKED = "model.source={synthetic: {seed: 1}}"
PROFILES = ("tiny-cpu", "tiny-cpu-resident", "h200-qwen", "4090-minimax")


def flat(plan: Plan, name: str) -> list[BoundStep]:
    program = dict(plan.programs.named())[name]
    steps = unroll(program, plan.model.layer_kinds, chunks=1, tiles=(1,))
    return [item for item in steps if isinstance(item, BoundStep)]


@pytest.mark.parametrize("profile", PROFILES)
def test_a_layer_reads_its_table_between_router_and_experts(profile: str, plan_of: PlanOf) -> None:
    plan = plan_of(profile, ASKED)
    for name in ("decode", "prefill", "extend"):
        steps = flat(plan, name)
        routers = [at for at, step in enumerate(steps) if step.step.op.startswith("route")]
        assert len(routers) == len(plan.model.layer_kinds)
        for layer, at in enumerate(routers):
            found = steps[at + 1]
            assert (found.step.op, found.at["l"]) == ("prescribe", layer)
            assert [weight.index for weight in found.weights] == [(layer,)]
            assert found.operands["ids"] == steps[at].operands["ids"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_tables_are_bytes_of_the_ledger(profile: str, plan_of: PlanOf) -> None:
    with_tables, without = plan_of(profile, ASKED), plan_of(profile, NOT_ASKED)
    [row] = [row for row in with_tables.weights if row.name == "routes"]
    num_layers, chosen = len(with_tables.model.layer_kinds), row.shape[1]
    assert row.shape == (8192, with_tables.model.geometry["num_experts_per_token"])
    assert row.bytes == 8192 * chosen * 4

    def weights(plan: Plan) -> int:
        return sum(line.bytes for line in plan.memory.device.lines if line.name == "weights")

    more = weights(with_tables) - weights(without)
    assert 0 <= more - num_layers * row.bytes < 2**20, "rounding"


def test_nobody_else_has_them(plan_of: PlanOf) -> None:
    for profile in PROFILES:
        for plan in (plan_of(profile), plan_of(profile, NOT_ASKED)):
            assert not [row for row in plan.weights if row.name == "routes"]
            assert not [row for row in plan.kernels if row.op == "prescribe"]


def test_another_router_is_another_plan(plan_of: PlanOf) -> None:
    plans = [plan_of("tiny-cpu", ASKED), plan_of("tiny-cpu", NOT_ASKED)]
    plans.append(plan_of("tiny-cpu", ASKED.replace("q36", "nem")))
    assert len({plan.fingerprint for plan in plans}) == 3
    assert [plan.model.source for plan in plans] == [
        {"synthetic.seed": "1", "synthetic.routes": "q36"},
        {"synthetic.seed": "1"},
        {"synthetic.seed": "1", "synthetic.routes": "nem"},
    ]
