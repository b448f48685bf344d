"""moe_down as one batched product on copies of each pair's weights: slow, short, a second opinion."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.moe_down.grouped import block_columns
from firmtoken.runtime.kernels.pair_slots import ELSEWHERE, pair_slots

BLOCK_PAIRS = 64
"""Bounds the copies to 64 experts."""


def moe_down(
    batch: Batch,
    *,
    a: torch.Tensor,
    experts: ExpertSlots,
    rows: torch.Tensor,
    ids: torch.Tensor | None = None,
    map: torch.Tensor | None = None,  # noqa: A002  the operand's name in compiler/ops.py
    slots: torch.Tensor | None = None,
    block: int | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
) -> None:
    """rows[T*k,H] from a[T*k,I], for pairs in row-major order; with `block`, some of the columns."""
    columns = block_columns(rows, block)
    found = torch.tensor(pair_slots(experts, ids, map, slots))
    weights = experts.arena.parts["down"][:, columns]
    for first in range(0, rows.shape[0], BLOCK_PAIRS):
        some = slice(first, first + BLOCK_PAIRS)
        product = torch.bmm(weights[found[some].clamp(min=0)], a[some].unsqueeze(2)).squeeze(2)
        real = (found[some] >= 0).unsqueeze(1)
        here = found[some] != ELSEWHERE
        rows[some][here] = torch.where(real, product, 0)[here]
