"""combine in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def combine(
    batch: Batch,
    *,
    rows: torch.Tensor,
    wts: torch.Tensor,
    hid: torch.Tensor,
    s: torch.Tensor | None = None,
) -> None:
    """hid[T,H] += sum over k of wts[T,k] * rows[T*k,H], + s[T,H]"""
    num_rows, k = wts.shape
    hid.unsqueeze(1).baddbmm_(wts.unsqueeze(1), rows.view(num_rows, k, -1))
    if s is not None:
        hid.add_(s)
