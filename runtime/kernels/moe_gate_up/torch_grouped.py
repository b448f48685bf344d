"""moe_gate_up in plain torch on fp32 slots: one product an expert."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.moe_gate_up.grouped import gate_up
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
    matrices = experts.arena.matrices["gate_up"]
    found = pair_slots(experts, ids, map, slots)
    gate_up(found, num_experts_per_token, x, a, matrices.__getitem__)
