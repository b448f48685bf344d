"""moe_gate_up as one batched product on copies of each pair's weights: slow, short, a second opinion."""

import torch
from torch.nn.functional import silu

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.pair_slots import pair_slots

BLOCK_PAIRS = 64
"""Bounds the copies to 64 experts."""


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
    found = torch.tensor(pair_slots(experts, ids, map, slots))
    vectors = x.repeat_interleave(num_experts_per_token, dim=0).unsqueeze(2)  # [P, H, 1]
    weights = experts.arena.parts["gate_up"]
    for first in range(0, a.shape[0], BLOCK_PAIRS):
        block = slice(first, first + BLOCK_PAIRS)
        both = torch.bmm(weights[found[block].clamp(min=0)], vectors[block]).squeeze(2)
        gate, up = both.chunk(2, dim=1)
        real = (found[block] >= 0).unsqueeze(1)
        a[block] = torch.where(real, silu(gate) * up, 0)
