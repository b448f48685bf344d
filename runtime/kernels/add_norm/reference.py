"""add_norm in plain torch."""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.batch import Batch


def add_norm(
    batch: Batch,
    *,
    hid: torch.Tensor,
    y: torch.Tensor | None = None,
    h: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float,
) -> None:
    """hid[T,H] += y; h[T,H] = rmsnorm(hid) * norm; either may be absent."""
    if y is not None:
        hid.add_(y)
    if h is not None:
        assert norm is not None
        h.copy_(rms_norm(hid, norm.shape, norm, eps))
