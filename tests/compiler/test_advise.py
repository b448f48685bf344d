"""Advice is found by splitting again, the cheapest first."""

from collections.abc import Callable

from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]


def sets(plan: Plan) -> list[str]:
    return [advice.set for advice in plan.advice]


def test_a_desktop_reserve_is_named(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen", "cache.kv_dtype=bf16", "hardware.gpu.reserve=1.25GiB")
    assert "hardware.gpu.reserve=0.25GiB" in sets(plan)


def test_what_advice_says_is_what_happens(plan_of: Plans) -> None:
    overrides = ("cache.kv_dtype=bf16", "serving.context=256k")
    plan = plan_of("4090-qwen", *overrides)
    assert plan.advice
    assert len(plan.advice) <= 3
    for advice in plan.advice:
        then = plan_of("4090-qwen", *overrides, advice.set)
        better = then.experts.slots > plan.experts.slots
        assert better or then.context.effective > plan.context.effective


def test_nothing_is_advised_where_nothing_is_short(plan_of: Plans) -> None:
    assert plan_of("h200-qwen").advice == ()
    assert plan_of("tiny-cpu").advice == ()
