"""The splits that were published or asked for, of the shipped profiles as they compile: shares, contexts, machinery."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.ledger import Ledger
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]
MACHINERY = {"resolve", "admit", "fetch"}


def names(side: Ledger) -> set[str]:
    return {line.name for line in side.lines}


def four_at_64k(plan_of: Plans, *overrides: str) -> Plan:
    return plan_of("4090-qwen", "serving.context=64k", "serving.requests=4", *overrides)


@pytest.mark.parametrize(
    ("reserve", "kv_dtype"), [("0.25GiB", "fp8"), ("0.25GiB", "bf16"), ("1.25GiB", "fp8")]
)
def test_a_4090_holds_every_expert_of_qwen_and_no_machinery_for_others(
    plan_of: Plans, reserve: str, kv_dtype: str
) -> None:
    plan = four_at_64k(plan_of, f"hardware.gpu.reserve={reserve}", f"cache.kv_dtype={kv_dtype}")
    assert (plan.experts.placement, plan.experts.slots) == ("resident", 10_240)
    assert (plan.context.effective, plan.warnings) == (65_536, ())
    assert not MACHINERY & {row.op for row in plan.kernels}
    assert not {"tables", "experts.staging", "experts.overflow"} & names(plan.memory.device)
    assert "bank" not in names(plan.memory.host)
    assert plan.experts.because.startswith("all 10,240 experts fit beside the context")
    assert "there is no table, no admission and no staging" in plan.experts.because


def test_bf16_keys_under_a_desktop_leave_97_percent_at_least(plan_of: Plans) -> None:
    plan = four_at_64k(plan_of, "hardware.gpu.reserve=1.25GiB", "cache.kv_dtype=bf16")
    assert plan.experts.resident_fraction >= 0.97


def test_headless_fp8_keeps_every_expert_up_to_about_236k_tokens(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen", "serving.context=max", "experts.placement=resident")
    assert plan.context.effective == pytest.approx(236_000, rel=0.02)
    assert plan.context.limited_by == "device_memory"
    # 258,048 of prototype.md 2.1 is without the shadow states, which D4 keeps beside the live ones.
    shadows = 4 * plan.kv_cache.state_bytes_per_sequence // plan.kv_cache.bytes_per_token
    assert plan.context.effective + shadows == pytest.approx(258_048, rel=0.01)


@pytest.mark.parametrize(
    ("context", "kv_dtype", "share"),
    [("64k", "fp8", 0.65), ("64k", "bf16", 0.58), ("192k", "fp8", 0.52)],
)
def test_a_pro_6000_holds_the_published_share_of_minimax(
    plan_of: Plans, context: str, kv_dtype: str, share: float
) -> None:
    wish = (f"serving.context={context}", f"cache.kv_dtype={kv_dtype}")
    plan = plan_of("pro6000-minimax", *wish)
    assert plan.experts.resident_fraction == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("name", ["4090-qwen", "pro6000-minimax"])
@pytest.mark.parametrize("kv_dtype", ["fp8", "bf16"])
def test_auto_under_balanced_gives_64k_at_least(plan_of: Plans, name: str, kv_dtype: str) -> None:
    plan = plan_of(
        name,
        "serving.context=auto",
        "serving.prefer=balanced",
        f"cache.kv_dtype={kv_dtype}",
    )
    assert plan.context.effective >= 65_536
    assert plan.warnings == ()
