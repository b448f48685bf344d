"""A tiny model of each family, compiled for the CPU into the very programs that the shipped offload plans run."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pytest

from firmtoken.compiler import fits, slot_split
from firmtoken.compiler.passes import bound_batches
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan, Programs
from firmtoken.compiler.program import Step
from firmtoken.compiler.steps import map_steps
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
CHUNK, TILE = 128, 64
PLAIN: dict[str, int | str] = {
    "hidden_size": 32,
    "num_layers": 4,  # a period of one and three more
    "full_attention_interval": 1,
    "num_q_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 16,
    "rotary_dim": 8,
    "linear": "null",
    "num_experts": 8,
    "num_experts_per_token": 3,
    "moe_intermediate_size": 16,
    "shared_intermediate_size": 0,
    "vocab_size": 64,
    "max_position_embeddings": 1024,
}
HYBRID: dict[str, int | str] = {
    **PLAIN,
    "num_layers": 5,  # a period of two and three more
    "full_attention_interval": 2,
    "linear": "{num_key_heads: 1, num_value_heads: 2, key_head_dim: 8, value_head_dim: 8, conv_kernel: 4}",
    "shared_intermediate_size": 16,
}
GEOMETRIES = {"qwen3_5_moe": HYBRID, "minimax_m2": PLAIN, "qwen3_moe": PLAIN}
SLOTS_A_LAYER = 3
"""Of 8 experts: most of them are missing whenever a span begins."""
BLOCKS = 4
"""Of the down projection's columns, as on a GPU; a CPU has one."""
RING, IN_WAVES = 4, {"num_experts": 11}
"""Staging slots in waves, and experts: eight missing ones come in four waves, two at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What tells the programs of shipped plans apart."""

    family: str
    in_blocks: bool = False
    in_waves: bool = False


SCHEDULES = {
    "hybrid": Schedule(family="qwen3_5_moe"),
    "hybrid in blocks": Schedule(family="qwen3_5_moe", in_blocks=True),
    "minimax in blocks": Schedule(family="minimax_m2", in_blocks=True),
    "minimax in waves": Schedule(family="minimax_m2", in_waves=True),
    "qwen3 in blocks": Schedule(family="qwen3_moe", in_blocks=True),
    "qwen3 in waves": Schedule(family="qwen3_moe", in_waves=True),
}


def schedule_named(plan: Plan) -> str:
    """Which of these a shipped plan has."""
    bounds = plan.programs.prefill.bounds
    wanted = Schedule(
        family=plan.model.family, in_blocks="columns" in bounds, in_waves="waves" in bounds
    )
    return next(name for name, schedule in SCHEDULES.items() if schedule == wanted)


@lru_cache(maxsize=16)
def tiny_plan(name: str, *overrides: str) -> Plan:
    """Offloaded, in tiles of 64 tokens and two chunks of 128 (in waves one), for five requests."""
    schedule = SCHEDULES[name]
    geometry = {**GEOMETRIES[schedule.family], **(IN_WAVES if schedule.in_waves else {})}
    wishes = (
        f"model.family={schedule.family}",
        *(f"model.geometry.{field}={value}" for field, value in geometry.items()),
        f"experts.slots={SLOTS_A_LAYER * int(geometry['num_layers'])}",
        "serving.context=1k",
        "serving.requests=5",
        f"schedule.prefill_chunk={CHUNK}",
        f"schedule.prefill_span={CHUNK if schedule.in_waves else 2 * CHUNK}",
        *(("serving.pool=3k",) if schedule.in_waves else ()),  # a device has a MiB at least
        *overrides,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound_batches, "CPU_SIZES", (TILE, CHUNK))  # a CPU has one tile a chunk
        if schedule.in_blocks:
            patch.setitem(bound_batches.COLUMN_BLOCKS, "cpu", BLOCKS)
            patch.setattr(bound_batches, "BLOCK_UNIT", int(geometry["hidden_size"]) // BLOCKS)
        plan = _compile(wishes)
        if schedule.in_waves:
            # Limits at which waves pay for a model as small as this, and one slot less than staging at once takes.
            patch.setattr(slot_split, "STAGING_SLOTS", 1)
            patch.setattr(slot_split, "RING_SLOTS", RING)
            patch.setattr(fits, "HIDDEN_SHARE", 0.0)
            whole = _compile(wishes)
            memory = whole.memory.device.total - whole.experts.slot_bytes
            plan = _compile((*wishes, f"hardware.cpu.memory={memory}B"))
    return plan


def _compile(wishes: tuple[str, ...]) -> Plan:
    return compile_profile(load_profile(str(PROFILES / "tiny-cpu.yaml"), wishes).profile, CARDS)


def schedule_of(plan: Plan) -> Programs:
    """The plan's programs without what a machine or a size decides: kernels' names, bounds, sizes, capture."""

    def bare(step: Step) -> Step:
        return replace(step, kernel="")

    programs = plan.programs
    fields = {
        name: replace(map_steps(program, bare), bounds={}, sizes=(), captured=False)
        for name, program in programs.named()
    }
    return replace(programs, **fields)
