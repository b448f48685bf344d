"""moe_down in plain torch on nvfp4 slots: decodes each expert when it is used."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots
from firmtoken.runtime.kernels.moe_down.grouped import block_columns, down
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
    block: int | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
) -> None:
    """rows[T*k,H] from a[T*k,I], for pairs in row-major order; with `block`, some of the columns."""
    columns = block_columns(rows, block)
    arena = experts.arena
    found = pair_slots(experts, ids, map, slots)
    down(found, a, rows, lambda slot: decode_down(arena, slot, columns))


def decode_down(arena: ExpertArena, slot: int, columns: slice) -> torch.Tensor:
    """fp32 [columns,I]"""
    _, _, scale = arena.matrices["globals"][slot].tolist()
    packed, scales = arena.matrices["down"][slot], arena.matrices["down_scale"][slot]
    return dequantise(packed[columns], scales[columns], scale)
