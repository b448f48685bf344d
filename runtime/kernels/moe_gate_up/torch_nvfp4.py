"""moe_gate_up in plain torch on nvfp4 slots: decodes each expert when it is used."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots
from firmtoken.runtime.kernels.moe_gate_up.grouped import gate_up
from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.kernels.pair_slots import pair_slots


def moe_gate_up(
    batch: Batch,
    *,
    x: torch.Tensor,
    experts: ExpertSlots,
    a: torch.Tensor,
    ids: torch.Tensor | None = None,
    map: torch.Tensor | None = None,  # noqa: A002  the operand's name in compiler/ops.py
    slots: torch.Tensor | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
) -> None:
    """a[T*k,I] from x[T,H], for pairs in row-major order."""
    arena = experts.arena
    found = pair_slots(experts, ids, map, slots)
    gate_up(found, num_experts_per_token, x, a, lambda slot: decode_gate_up(arena, slot))


def decode_gate_up(arena: ExpertArena, slot: int) -> torch.Tensor:
    """fp32 [2I,H], gate first; each half has its own global scale."""
    gate_scale, up_scale, _ = arena.matrices["globals"][slot].tolist()
    matrices = arena.matrices
    gate = dequantise(matrices["gate"][slot], matrices["gate_scale"][slot], gate_scale)
    up = dequantise(matrices["up"][slot], matrices["up_scale"][slot], up_scale)
    return torch.cat((gate, up))
