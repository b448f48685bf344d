"""The Triton kernels that plans name compile for the cards of these plans, and no kernel is forgotten by its card."""

import os
import re
from pathlib import Path

import msgspec
import pytest
from tests.runtime.cli.console import SOURCE

from firmtoken.compiler.operands import LaunchForm, Operand
from firmtoken.runtime.cli.check_kernels import kernel_requests
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.kernels import load_entry
from firmtoken.runtime.kernels.builds import Launch
from firmtoken.runtime.kernels.cross_compile import Request, compile_kernel, unfit

KERNELS = Path(__file__).resolve().parents[3] / "runtime/kernels"
SHARED_MEMORY = {(8, 0): 166_912, (9, 0): 232_448, (10, 0): 232_448}
"""Of a block (CUDA C++ Programming Guide, technical specifications)."""
LEAST_SHARED_MEMORY = 101_376
"""Of the others: 8.6, 8.9 and 12.0."""
BY_ROWS = "kernels.linear.decode=triton_bf16"
FUSED = {"down_combine", "norm_route_rows"}
"""Two ops in one launch, faster where launches do not start early; no op of a plan is both (NOTES.md)."""
UNPLANNED = {"store_word", "prescribe_rows"}
"""Of a graph's position, and of a synthetic source with routes: no shipped plan names them."""
QWEN_EXPERTS = {"hidden_size": 2048, "expert_width": 512, "num_experts_per_token": 8}


def requests(profile: str, *overrides: str) -> dict[str, Request]:
    plan = compile_argument(profile, overrides).plan
    return {f"{row.op} {row.kernel}": request for row, request in kernel_requests(plan)}


def misfits(found: dict[str, Request]) -> dict[str, str]:
    told = {}
    for name, request in found.items():
        memory = SHARED_MEMORY.get(request.capability, LEAST_SHARED_MEMORY)
        environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
        for built in compile_kernel(request, limit_s=240, environ=environ).builds:
            if fault := unfit(built, shared_memory_per_block=memory):
                told[f"{name}, {built.name}"] = fault
    return told


def launched_functions() -> set[str]:
    """Triton functions that some launcher launches."""
    sources = [path.read_text() for path in KERNELS.rglob("*.py")]
    defined = {
        name for text in sources for name in re.findall(r"^@triton\.jit.*\ndef (\w+)\(", text, re.M)
    }
    indexed = {
        name
        for text in sources
        if "import torch" in text
        for name in re.findall(r"^ +(\w+)\[", text, re.M)
    }
    return defined & indexed


def test_every_kernel_that_can_be_launched_is_named_by_a_card() -> None:
    named = set()
    for found in (
        requests("4090-qwen"),
        requests("4090-qwen3-30b"),
        requests("4090-minimax", BY_ROWS),
    ):
        for request in found.values():
            for form in request.forms:
                launch = Launch(
                    format=request.format, num_rows=request.num_rows, operands=form.operands
                )
                builds = load_entry(request.builds)(launch, **request.constants)
                named |= {build.function.__name__ for build in builds}
    launched = launched_functions()
    assert {"gate_up_pairs", "multiply_rows", "write_heads"} <= launched
    assert launched - named == FUSED | UNPLANNED


def test_products_steps_and_experts_fit_a_card_without_fp8() -> None:
    wanted = ("linear triton_fp8", "gdn triton_step", "moe_down triton_nvfp4")
    found = requests("3090-qwen")
    assert found[wanted[0]].constants["fp8_units"] == 0
    assert misfits({name: found[name] for name in wanted}) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "capability"),
    [
        ("3090-qwen", (8, 0)),
        ("3090-qwen", (8, 6)),
        ("4090-qwen", (8, 9)),
        ("4090-qwen3-30b", (8, 9)),
        ("h200-qwen", (9, 0)),
        ("5090-qwen", (10, 0)),
        ("5090-qwen", (12, 0)),
        ("4090-minimax", (8, 9)),
        ("h200-minimax", (9, 0)),
        ("pro6000-minimax", (10, 0)),
        ("pro6000-minimax", (12, 0)),
    ],
)
def test_all_kernels_of_a_plan_fit(profile: str, capability: tuple[int, int]) -> None:
    found = {
        name: msgspec.structs.replace(request, capability=capability)
        for name, request in requests(profile).items()
    }
    assert misfits(found) == {}


@pytest.mark.slow
def test_products_of_bf16_weights_fit_when_they_are_asked_for() -> None:
    name = "linear triton_bf16"
    assert misfits({name: requests("4090-minimax", BY_ROWS)[name]}) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "profile", ["3090-qwen", "4090-qwen", "h200-qwen", "5090-qwen", "4090-minimax"]
)
def test_attention_over_bf16_pages_fits(profile: str) -> None:
    name = "attention triton_prefill"
    assert misfits({name: requests(profile, "cache.kv_dtype=bf16")[name]}) == {}


@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_fused_kernels_fit(capability: tuple[int, int]) -> None:
    row = Operand(dtype="bf16", shape=(2048,))
    operands = {
        **dict.fromkeys(("hid", "y", "h"), row),
        "norm": Operand(dtype="fp32", shape=(2048,)),
        "router": Operand(dtype="bf16", shape=(256, 2048)),
        **dict.fromkeys(("a", "shared_a"), Operand(dtype="bf16", shape=(512,))),
    }
    route = {"num_experts_per_token": 8, "experts_at_once": 2}
    down = {**QWEN_EXPERTS, "warps": 1, "lanes": 32, "outputs": 4}
    found = {
        name: Request(
            builds=f"firmtoken.runtime.kernels.{builds}",
            constants={**constants, "early": int(capability >= (9, 0))},
            capability=capability,
            format="nvfp4",
            num_rows=4,
            forms=(LaunchForm(operands=operands),),
        )
        for name, builds, constants in (
            ("norm_route", "route.norm_top_k:norm_route_builds", route),
            ("down_combine", "moe_down.nvfp4_pairs:down_combine_builds", down),
        )
    }
    assert misfits(found) == {}
