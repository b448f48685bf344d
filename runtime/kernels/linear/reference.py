"""linear in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def linear(batch: Batch, *, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
    """y[T,N] = x[T,K] w[N,K]^T"""
    torch.mm(x, w.t(), out=y)
