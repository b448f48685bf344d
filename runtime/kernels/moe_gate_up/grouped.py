"""The gate and up halves for pairs grouped by expert, whatever the slots' format.

Legend: P pairs of the launch, H hidden size, I expert width.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import silu

from firmtoken.runtime.kernels.pair_slots import FEW_PAIRS, PADDED, sort_by_slot

Matrix = Callable[[int], torch.Tensor]


def gate_up(slots: list[int], k: int, x: torch.Tensor, a: torch.Tensor, matrix: Matrix) -> None:
    """a[P,I] from x[T,H]; `matrix(slot)` is [2I,H], gate first. Sorts by expert above `FEW_PAIRS`."""
    if len(slots) <= FEW_PAIRS:
        pair_by_pair(slots, k, x, a, matrix)
        return
    order, runs = sort_by_slot(slots)
    rows = x.index_select(0, order // k)
    both = x.new_empty(len(order), 2 * a.shape[1])
    for run in runs:
        out = both[run.begin : run.end]
        if run.slot == PADDED:
            out.zero_()
        else:
            torch.mm(rows[run.begin : run.end], matrix(run.slot).t(), out=out)
    gate, up = both.chunk(2, dim=1)
    a.index_copy_(0, order, silu(gate).mul_(up))


def pair_by_pair(
    slots: list[int], k: int, x: torch.Tensor, a: torch.Tensor, matrix: Matrix
) -> None:
    """The same for few pairs: matrix times vector, one activation for all."""
    rows = x.unbind(0)
    both = x.new_empty(len(slots), 2 * a.shape[1])
    for pair, (slot, out) in enumerate(zip(slots, both.unbind(0), strict=True)):
        if slot < 0:
            out.zero_()  # of a pair that is elsewhere nobody reads `a`
        else:
            torch.mv(matrix(slot), rows[pair // k], out=out)
    gate, up = both.chunk(2, dim=1)
    torch.mul(silu(gate), up, out=a)
