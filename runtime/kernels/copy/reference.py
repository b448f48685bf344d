"""copy in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def copy(batch: Batch, *, source: torch.Tensor, target: torch.Tensor) -> None:
    """target[t] = source[s] for each (s, t)."""
    if not batch.copies:
        return
    sources, targets = torch.tensor(batch.copies).unbind(1)
    target.index_copy_(0, targets, source.index_select(0, sources))
