"""embed in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def embed(batch: Batch, *, table: torch.Tensor, hid: torch.Tensor) -> None:
    """hid[T,H] = table[V,H] at the batch's token ids."""
    torch.index_select(table, 0, batch.token_ids, out=hid)
