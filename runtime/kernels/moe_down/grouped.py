"""The down projection for pairs grouped by expert, whatever the slots' format.

Legend: P pairs of the launch, H hidden size, I expert width.
"""

from collections.abc import Callable

import torch

from firmtoken.runtime.kernels.pair_slots import ELSEWHERE, FEW_PAIRS, PADDED, sort_by_slot

Matrix = Callable[[int], torch.Tensor]


def block_columns(rows: torch.Tensor, block: int | None) -> slice:
    """Output columns that rows[P,B] is for: all H, or B of them from block * B on."""
    first = (block or 0) * rows.shape[1]
    return slice(first, first + rows.shape[1])


def down(slots: list[int], a: torch.Tensor, rows: torch.Tensor, matrix: Matrix) -> None:
    """rows[P,H] from a[P,I]; `matrix(slot)` is [H,I]. Sorts by expert above `FEW_PAIRS`."""
    if len(slots) <= FEW_PAIRS:
        pair_by_pair(slots, a, rows, matrix)
        return
    order, runs = sort_by_slot(slots)
    vectors = a.index_select(0, order)
    products = a.new_empty(len(order), rows.shape[1])
    for run in runs:
        out = products[run.begin : run.end]
        if run.slot == PADDED:
            out.zero_()
        else:
            torch.mm(vectors[run.begin : run.end], matrix(run.slot).t(), out=out)
    rows.index_copy_(0, order, products)


def pair_by_pair(slots: list[int], a: torch.Tensor, rows: torch.Tensor, matrix: Matrix) -> None:
    """The same for few pairs: matrix times vector."""
    for slot, vector, out in zip(slots, a.unbind(0), rows.unbind(0), strict=True):
        if slot == PADDED:
            out.zero_()
        elif slot != ELSEWHERE:
            torch.mv(matrix(slot), vector, out=out)
