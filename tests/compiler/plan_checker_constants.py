"""What each kernel of a plan is compiled with: by geometry, by its own card, and by the machine and model."""

from collections.abc import Iterator

from tests.compiler.plan_checker_ledger import differ
from tests.compiler.plan_checker_model import Json
from tests.compiler.plan_checker_split import Bench
from tests.compiler.plan_checker_workspaces import attention_parts, mixer_tile

from firmtoken.runtime.kernels import CARDS

CONSTANTS = {(card.op, card.name): card.constants for card in CARDS}
"""Tiles and warps are the kernel's own, as its card has them."""


def check_constants(bench: Bench) -> Iterator[str]:
    """Of every kernel that a plan has chosen."""
    for row in bench.plan["kernels"]:
        own = dict(CONSTANTS.get((row["op"], row["kernel"]), ()))
        due = {**_of_geometry(bench), **_of_the_machine(bench), **_of_the_kernel(bench, row), **own}
        wanted = {name: due[name] for name in row["constants"]}
        yield from differ(f"kernel {row['op']}.{row['phase']}: ", row["constants"], wanted)


def _of_geometry(bench: Bench) -> Json:
    model = bench.asked["model"]
    shape = model["geometry"]
    return {
        **shape,
        **(shape["linear"] or {}),
        "eps": shape["rms_norm_eps"],
        "expert_width": shape["moe_intermediate_size"],
        "gated": int(model["family"] == "qwen3_5_moe"),
        "page_size": bench.plan["kv_cache"]["page_size"],
        "scale": shape["head_dim"] ** -0.5,
        "conversation": 1024,
    }


def _of_the_machine(bench: Bench) -> Json:
    """The same for each kernel that has it (runtime/kernels/NOTES.md)."""
    gpu, shape = bench.asked["hardware"]["gpu"], bench.asked["model"]["geometry"]
    if gpu is None:
        return {}
    capability = float(gpu["compute_capability"])
    lanes = 8 if shape["moe_intermediate_size"] <= 1024 else 16
    return {
        "parts": max(bench.requests, -(-2 * gpu["sms"] // shape["num_kv_heads"])),
        "fp8_units": 1 if capability >= 8.9 else 0,
        "early": 1 if capability >= 9 else 0,
        "lanes": lanes,
        "down_lanes": lanes,
        # 227 KB of shared memory for a block, or 99 (hardware.md 1.1).
        "large_stages": 4 if 9 <= capability < 12 else 3,
        # Only 9.x has wgmma.
        "quads": 0 if 9 <= capability < 10 else 1,
        "sequences": next(1 << power for power in range(16) if 1 << power >= bench.requests),
        # States in words of four bytes: one is bf16, the other fp32.
        "conv_words": bench.model.conv_elements // 2,
        "recurrent_words": bench.model.recurrent_elements,
    }


def _of_the_kernel(bench: Bench, row: Json) -> Json:
    """Names that mean another thing for other kernels: tiles of prefill's attention, stages of the delta net."""
    gpu, wide = bench.asked["hardware"]["gpu"], bench.asked["model"]["geometry"]["head_dim"] >= 256
    if gpu is None:
        return {}
    at = gpu["compute_capability"]
    if row["op"] == "gdn":
        return {"stages": 3 if at == "9.0" else 2}
    return _of_attention(bench, row, at, wide=wide) if row["op"] == "attention" else {}


def _of_attention(bench: Bench, row: Json, at: str, *, wide: bool) -> Json:
    """Of a prompt: rows and tokens of a product, as many as registers and shared memory hold (NOTES.md)."""
    gpu, shape = bench.asked["hardware"]["gpu"], bench.asked["model"]["geometry"]
    small = (wide and at != "9.0") or (row["format"] == "fp8" and float(at) >= 12)
    block = 32 if wide and at not in ("9.0", "10.0", "10.3") else 64
    # FP8 pages that are not wide: what they are converted to needs registers.
    scarce = row["format"] == "fp8" and not small and (wide or at != "9.0")
    token = 4 * shape["num_kv_heads"] * shape["head_dim"]
    return {
        "tile": 64 if small else 128,
        "block": 32 if scarce else block,
        "stages": 1 if scarce else 2,
        "wide_block": block,
        "wide_tokens": (mixer_tile(bench) - attention_parts(bench)) // token // 64 * 64,
        "q_again": int(at[0] != "9"),
        "programs": gpu["sms"],
    }
