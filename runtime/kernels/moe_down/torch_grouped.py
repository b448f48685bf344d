"""moe_down in plain torch on fp32 slots: one product an expert."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.moe_down.grouped import block_columns, down
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
    block: int | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
) -> None:
    """rows[T*k,H] from a[T*k,I], for pairs in row-major order; with `block`, some of the columns."""
    matrices = experts.arena.matrices["down"]
    found = pair_slots(experts, ids, map, slots)
    if block is None:  # a cut costs as much as a small product
        down(found, a, rows, matrices.__getitem__)
    else:
        columns = block_columns(rows, block)
        down(found, a, rows, lambda slot: matrices[slot][columns])
