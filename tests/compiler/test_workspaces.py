"""Device memory that kernels hold beside their operands: a line for each backend, to the byte of published ledgers."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmtoken.compiler.ledger import Line
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.workspaces import Sizes, wide_tokens, workspace_bytes
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import LinearGeometry

Plans = Callable[..., Plan]
MIB = 2**20

QWEN_4090 = Sizes(
    capability=(8, 9),
    sms=128,
    q_heads=16,
    kv_heads=2,
    head_dim=256,
    hidden_size=2048,
    expert_width=512,
    shared_width=512,
    experts=256,
    vocab=248_320,
    recurrent_elements=32 * 128 * 128,
    linear=LinearGeometry(
        num_key_heads=16,
        num_value_heads=32,
        key_head_dim=128,
        value_head_dim=128,
        conv_kernel=4,
    ),
    requests=4,
    longest=65_536,
    tile=2048,
    chunk=8192,
    experts_per_token=8,
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
    linear=None,
    tile=4096,
)
LINEAR_ROW = (2 * 16 * 128 + 32 * 128 + 32 * 128) * 2 + 32 * 4
"""Bytes: queries, keys, what is read of the state and added to it in bf16; sums of decays in fp32."""


PARTS = 128 * 128 * 258 * 4
"""A tile of 128 rows for each multiprocessor: heads of 256 in fp32, a maximum and a sum."""


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
            "mixer_tile",
            QWEN_4090,
            (2048 // 64 + 2 * 4) * MIB + 2048 * LINEAR_ROW,
        ),  # D6: states of 1 MiB in bf16; a sequence may begin and end within a chunk
        ("mixer_tile", replace(QWEN_4090, tile=2000, requests=1), 34 * MIB + 2000 * LINEAR_ROW),
        ("mixer_tile", replace(QWEN_4090, tile=64), PARTS),
        ("mixer_tile", replace(QWEN_4090, linear=None), PARTS + 64 * MIB),  # 32,768 tokens in bf16
        ("mixer_tile", replace(QWEN_4090, linear=None, longest=4000), PARTS + 4032 * 2048),
        ("prefill_parts", QWEN_4090, PARTS),
        ("split_kv", QWEN_4090, 16 * 128 * 258 * 4),
        ("split_kv", replace(QWEN_4090, requests=200), 16 * 200 * 258 * 4),
        ("operand_order", QWEN_4090, 8192 * ((2048 + 512) * 2 + 4)),  # the shared expert needs most
        (
            "operand_order",
            replace(QWEN_4090, shared_width=0, tile=16),
            8192 * 2048 * 2 + (65_536 + 3 * (4096 + 257) + 1 + 2 * 256 * 512) * 4 + 240,
        ),  # pairs, tiles of at least 16, 512 bins for each of 256 chunks of 256 pairs; to 256 bytes
        ("", QWEN_4090, 0),
    ],
)
def test_a_workspace_follows_from_the_plans_numbers(backend: str, sizes: Sizes, due: int) -> None:
    assert workspace_bytes(backend, sizes) == due


def test_fp8_pages_lie_wide_where_linear_attention_has_its_own_things() -> None:
    """The two never at once: one stream, and what either holds need not last."""
    lent = wide_tokens(QWEN_4090)
    assert (
        PARTS + lent * 2048 <= workspace_bytes("mixer_tile", QWEN_4090) < PARTS + (lent + 64) * 2048
    )
    assert wide_tokens(replace(QWEN_4090, tile=64)) == 0
    assert wide_tokens(replace(QWEN_4090, linear=None)) == 32_768


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
    chosen = {"cublas", "head", "mixer_tile", "operand_order", "route", "sample", "split_kv"}
    assert set(lines) == chosen
    assert lines["cublas"].bytes == 32 * MIB
    rows = [row for row in plan.kernels if row.workspace == "cublas"]
    assert len(rows) == 2 and {row.workspace_bytes for row in rows} == {32 * MIB}
    shared = "moe_gate_up.triton_grouped_nvfp4, moe_down.triton_grouped_nvfp4"
    assert lines["operand_order"].because.endswith(f": {shared}")
    rows = [row for row in plan.kernels if row.workspace == "operand_order"]
    assert {row.workspace_bytes for row in rows} == {lines["operand_order"].bytes}


def test_a_kernel_that_is_not_chosen_costs_nothing(plan_of: Plans) -> None:
    chosen = {"mixer_tile", "operand_order", "route", "sample", "split_kv"}
    assert set(workspaces(plan_of("4090-qwen"))) == chosen
    built = plan_of("4090-qwen", "kernels={attention.prefill: flashinfer_fa2}")
    assert set(workspaces(built)) == {*chosen, "flashinfer"}
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
