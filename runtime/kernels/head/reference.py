"""head in plain torch."""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.batch import Batch


def head(
    batch: Batch,
    *,
    last: torch.Tensor,
    norm: torch.Tensor,
    w: torch.Tensor,
    logits: torch.Tensor,
    eps: float,
) -> None:
    """logits[S,V] = rmsnorm(last[S,H]) * norm times w[V,H]^T"""
    torch.mm(rms_norm(last, norm.shape, norm, eps), w.t(), out=logits)
