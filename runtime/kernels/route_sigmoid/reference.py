"""route_sigmoid in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def route_sigmoid(
    batch: Batch,
    *,
    h: torch.Tensor,
    router: torch.Tensor,
    bias: torch.Tensor,
    ids: torch.Tensor,
    wts: torch.Tensor,
    num_experts_per_token: int,
) -> None:
    """ids[T,k] and wts[T,k] of the best experts."""
    scores = torch.mm(h, router.t()).sigmoid()
    experts = torch.topk(scores + bias, num_experts_per_token).indices
    chosen = scores.gather(1, experts)
    wts.copy_(chosen / chosen.sum(dim=-1, keepdim=True))
    ids.copy_(experts)
    if batch.real_rows < batch.rows:
        ids[batch.real_rows :] = -1
        wts[batch.real_rows :] = 0
