"""route in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def route(
    batch: Batch,
    *,
    h: torch.Tensor,
    router: torch.Tensor,
    ids: torch.Tensor,
    wts: torch.Tensor,
    num_experts_per_token: int,
) -> None:
    """ids[T,k] and wts[T,k] of the best experts.

    The softmax over all, cut to k and divided by its sum, is the softmax of those k logits.
    """
    best, experts = torch.topk(torch.mm(h, router.t()), num_experts_per_token)
    wts.copy_(torch.softmax(best, dim=-1))
    ids.copy_(experts)
    if batch.real_rows < batch.rows:
        ids[batch.real_rows :] = -1
        wts[batch.real_rows :] = 0
