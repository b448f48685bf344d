"""moe_down in plain torch on nvfp4 slots: decodes each expert when it is used."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots
from firmtoken.runtime.kernels.moe_down.grouped import down
from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.kernels.pair_slots import pair_slots


def moe_down(
    batch: Batch,
    *,
    a: torch.Tensor,
    experts: ExpertSlots,
    rows: torch.Tensor,
    ids: torch.Tensor | None = None,
    map: torch.Tensor | None = None,  # noqa: A002  the operand's name in compiler/ops.py
    slots: torch.Tensor | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
) -> None:
    """rows[T*k,H] from a[T*k,I], for pairs in row-major order."""
    arena = experts.arena
    found = pair_slots(experts, ids, map, slots)
    down(found, a, rows, lambda slot: decode_down(arena, slot))


def decode_down(arena: ExpertArena, slot: int) -> torch.Tensor:
    """fp32 [H,I]"""
    _, _, scale = arena.matrices["globals"][slot].tolist()
    return dequantise(arena.matrices["down"][slot], arena.matrices["down_scale"][slot], scale)
