"""The splits that were published or asked for, of the shipped profiles as they compile: shares, contexts, machinery."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.ledger import Ledger
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]
MACHINERY = {"resolve", "admit", "fetch"}
PROTOTYPE = {
    "weights": 2_705_763_544,
    "states": 321_945_600,
    "activations": 174_063_616,
    "inputs": 0,
    "tables": 245_760,
    "workspaces": 150_994_944 + 8_388_608,
    "cuda_context": 629_145_600,
    "graphs": 41_943_040,
    "margin": 134_217_728,
    "experts.cache": 18_119_393_280,
}
"""Bytes of prototype.md 2.1 for Qwen on a headless RTX 4090, beside the pages of 258,048 tokens."""
PROTOTYPE_FREE = 35_328_808
"""What is left of the card there: less than its next step of context."""


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
    spent = {line.name: line.bytes for line in plan.memory.device.lines}
    spent["workspaces"] = sum(spent.pop(name) for name in [*spent] if name.startswith("workspace."))
    more = {name: spent.get(name, 0) - had for name, had in PROTOTYPE.items()}
    assert set(spent) - set(PROTOTYPE) == {"kv_pages"}
    # Shadow states, which D4 keeps beside the live ones: 25,152 tokens.
    assert more["states"] == 4 * plan.kv_cache.state_bytes_per_sequence
    # What lives across a yield: 3,311 tokens; the prototype gave it no line.
    assert 33_000_000 < more["inputs"] < 35_000_000
    # 42 MB for products of many rows and 93 MB for the delta net, instead of 151 MB for a library's attention; 4 KiB a
    # launch for graphs of three decode batches and nine lengths of prompts, instead of 16 for five: back 3,395 tokens.
    assert more["workspaces"] == pytest.approx(-22_600_000, rel=0.05)
    assert more["graphs"] == pytest.approx(-12_100_000, rel=0.05)
    tokens = (sum(more.values()) - PROTOTYPE_FREE) / plan.kv_cache.bytes_per_token
    assert plan.context.effective == pytest.approx(258_048 - tokens, abs=4 * 64)


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
