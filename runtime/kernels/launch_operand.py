"""Launches what puts x in the order in which products with NVFP4 weights read it (`nvfp4_operand.py`)."""

import torch

from firmtoken.runtime.kernels.nvfp4_operand import (
    ORDER_WARPS,
    ORDERED_COLUMNS,
    ORDERED_GROUPS,
    order_columns,
)


def in_operand_order(x: torch.Tensor, workspace: torch.Tensor, *, quads: int) -> torch.Tensor:
    """A copy of x [T,K], contiguous, K a multiple of 128, at the beginning of a workspace (bytes)."""
    assert x.is_contiguous() and x.shape[1] % ORDERED_COLUMNS == 0
    groups = x.numel() // ORDERED_COLUMNS
    ordered = workspace[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
    order_columns[(-(-groups // ORDERED_GROUPS),)](
        x, ordered, groups, GROUPS=ORDERED_GROUPS, QUADS=bool(quads), num_warps=ORDER_WARPS
    )
    return ordered
