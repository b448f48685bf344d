"""moe_down in plain torch on fp32 slots: one product an expert."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.moe_down.grouped import down
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
    matrices = experts.arena.matrices["down"]
    down(pair_slots(experts, ids, map, slots), a, rows, matrices.__getitem__)
