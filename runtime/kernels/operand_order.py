"""Which kernels keep the columns of an operand in operand order (`nvfp4_operand.py` says what for), without Triton."""

import torch

STEP = 128
"""Columns that are put in order at a time."""
ORDERED = {
    ("moe_gate_up", "triton_grouped_nvfp4"): ("a",),
    ("moe_down", "triton_grouped_nvfp4"): ("a",),
}
"""(op, kernel) -> operands; whoever reads one in between must know."""


def columns_at(width: int, *, quads: int) -> torch.Tensor:
    """int64 [width]: the column that lies at each place, as `column_at` has it on a device."""
    place = torch.arange(width)
    if quads:
        lane, code = place >> 2 & 3, (place >> 3 & 2) | (place >> 1 & 1)
    else:
        lane, code = place >> 1 & 3, place >> 3 & 3
    return (place & -STEP) | lane << 5 | (place >> 5 & 3) << 3 | (place & 1) << 2 | code
