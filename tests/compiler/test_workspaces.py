"""Device memory that kernels hold beside their operands: a line for each backend, to the byte of published ledgers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmtoken.compiler.ledger import Line
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.workspaces import Sizes, workspace_bytes
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

Plans = Callable[..., Plan]
MIB = 2**20

QWEN_4090 = Sizes(
    capability=(8, 9),
    sms=128,
    q_heads=16,
    kv_heads=2,
    head_dim=256,
    expert_width=512,
    recurrent_elements=32 * 128 * 128,
    requests=4,
    tile=2048,
)
MINIMAX_6000 = replace(
    QWEN_4090,
    capability=(12, 0),
    sms=188,
    q_heads=48,
    kv_heads=8,
    head_dim=128,
    expert_width=1536,
    recurrent_elements=0,
    tile=4096,
)


def workspaces(plan: Plan) -> dict[str, Line]:
    return {
        line.name.removeprefix("workspace."): line
        for line in plan.memory.device.lines
        if line.name.startswith("workspace.")
    }


@pytest.mark.parametrize(
    ("backend", "sizes", "due"),
    [
        ("flashinfer", QWEN_4090, 150_994_944),  # prototype.md 2.1
        ("flashinfer", MINIMAX_6000, 165_675_008),
        ("cublas", QWEN_4090, 8_388_608),
        ("cublas", MINIMAX_6000, 33_554_432),
        ("cublas", replace(QWEN_4090, capability=(8, 6)), 8_388_608),
        ("cublas", replace(QWEN_4090, capability=(9, 0)), 33_554_432),
        (
            "gdn_chunks",
            QWEN_4090,
            (2048 // 64 + 4) * MIB,
        ),  # D6: tile / 64 + requests states of 1 MiB in bf16
        ("gdn_chunks", replace(QWEN_4090, tile=2000, requests=1), (32 + 1) * MIB),
        ("split_kv", QWEN_4090, 16 * 128 * 258 * 4),
        ("split_kv", replace(QWEN_4090, requests=200), 16 * 200 * 258 * 4),
        ("", QWEN_4090, 0),
    ],
)
def test_a_workspace_follows_from_the_plans_numbers(backend: str, sizes: Sizes, due: int) -> None:
    assert workspace_bytes(backend, sizes) == due


@pytest.mark.parametrize("sms", [82, 128, 170, 188])
def test_that_of_flashinfer_is_no_flat_number(sms: int) -> None:
    found = workspace_bytes("flashinfer", replace(MINIMAX_6000, sms=sms))
    # hardware.md 1.3: query heads * ceil(2 * SMs / kv heads) * tile * head size * 4 bytes, and slack.
    least = 48 * -(-2 * sms // 8) * 128 * 128 * 4
    assert least + 16 * MIB <= found < least + 18 * MIB


@pytest.mark.report(22)
def test_kernels_of_one_backend_share_a_line_that_names_them(plan_of: Plans) -> None:
    plan = plan_of("pro6000-minimax")
    lines = workspaces(plan)
    assert set(lines) == {"flashinfer", "cublas", "split_kv"}
    assert lines["cublas"].bytes == 32 * MIB
    assert lines["cublas"].because.endswith(": head.cublas_bf16, linear.cublas_bf16")
    rows = [row for row in plan.kernels if row.workspace == "cublas"]
    assert len(rows) == 4 and {row.workspace_bytes for row in rows} == {32 * MIB}


def test_a_kernel_that_is_not_chosen_costs_nothing(plan_of: Plans) -> None:
    assert set(workspaces(plan_of("4090-qwen"))) == {"flashinfer", "split_kv", "gdn_chunks"}
    named = plan_of("4090-qwen", "kernels.linear=scaled_mm_tensorwise")
    assert workspaces(named)["cublas"].bytes == 8 * MIB
    assert named.environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:2"
    assert workspaces(plan_of("tiny-cpu")) == {}


def test_the_variable_gives_cublas_what_its_line_says(plan_of: Plans) -> None:
    for name in ("pro6000-minimax", "4090-minimax", "h200-minimax"):
        plan = plan_of(name)
        _, size, count = plan.environment["CUBLAS_WORKSPACE_CONFIG"].split(":")
        assert workspaces(plan)["cublas"].bytes == int(size) * 1024 * int(count)


def test_a_workspace_is_paid_for_in_tokens(plan_of: Plans) -> None:
    wish = ("4090-qwen", "serving.context=max", "experts.placement=resident")
    plan = plan_of(*wish)
    profile = load_profile(f"ft:{wish[0]}", wish[1:]).profile
    free = tuple(replace(card, workspace="") for card in CARDS)
    other = compile_profile(profile, free)
    paid = sum(line.bytes for line in workspaces(plan).values())
    more = other.kv_cache.tokens - plan.kv_cache.tokens
    assert workspaces(other) == {}
    assert more * plan.kv_cache.bytes_per_token == pytest.approx(paid, abs=64 * 10_240)


def test_spilled_registers_are_a_line_for_every_thread_that_can_be_resident() -> None:
    profile = load_profile("ft:4090-qwen", ()).profile
    spilling = tuple(
        replace(card, local_bytes=256) if card.name == "triton_split_kv" else card for card in CARDS
    )
    line = workspaces(compile_profile(profile, spilling))["spills"]
    assert line.bytes == 128 * 1536 * 256  # 50 MB: prototype.md 2.4
    assert line.because.startswith("256 B of registers")
