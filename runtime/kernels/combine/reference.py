"""combine in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def column_block(whole: torch.Tensor, block: int, width: int) -> torch.Tensor:
    """Columns block * width to (block + 1) * width of whole[T,H]."""
    return whole[:, block * width : (block + 1) * width]


def combine(
    batch: Batch,
    *,
    rows: torch.Tensor,
    wts: torch.Tensor,
    hid: torch.Tensor,
    s: torch.Tensor | None = None,
    block: int | None = None,
) -> None:
    """hid[T,H] += sum over k of wts[T,k] * rows[T*k,H], + s[T,H]; with `block`, of the columns that rows has."""
    num_rows, k = wts.shape
    if block is not None:
        hid = column_block(hid, block, rows.shape[1])
        s = None if s is None else column_block(s, block, rows.shape[1])
    hid.unsqueeze(1).baddbmm_(wts.unsqueeze(1), rows.view(num_rows, k, -1))
    if s is not None:
        hid.add_(s)
