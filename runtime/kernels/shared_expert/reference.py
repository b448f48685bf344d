"""shared_expert in plain torch."""

import torch
from torch.nn.functional import silu

from firmtoken.runtime.kernels.batch import Batch


def shared_expert(
    batch: Batch,
    *,
    h: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate: torch.Tensor,
    s: torch.Tensor,
) -> None:
    """s[T,H] = sigmoid(gate h) * down(silu(gate rows h) * (up rows h))"""
    gated, up = torch.mm(h, gate_up.t()).chunk(2, dim=1)
    torch.mm(silu(gated).mul_(up), down.t(), out=s)
    s.mul_(torch.mm(h, gate.t()).sigmoid_())
