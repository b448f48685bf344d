"""The shared expert in plain torch, one half beside each half of the experts: what kernels that take it give."""

import torch
from torch.nn.functional import silu


def shared_gate_up(
    *,
    x: torch.Tensor,
    shared_gate_up: torch.Tensor,
    shared_gate: torch.Tensor,
    shared_a: torch.Tensor,
    share: torch.Tensor,
) -> None:
    """shared_a[T,I] and share[T] of x[T,H], as in the contract of moe_gate_up."""
    gated, up = torch.mm(x, shared_gate_up.t()).chunk(2, dim=1)
    torch.mul(silu(gated), up, out=shared_a)
    torch.sigmoid(torch.mm(x, shared_gate.t()).view(-1), out=share)


def shared_down(
    *, shared_a: torch.Tensor, shared_down: torch.Tensor, share: torch.Tensor, s: torch.Tensor
) -> None:
    """s[T,H] of shared_a[T,I] and share[T], as in the contract of moe_down."""
    torch.mm(shared_a, shared_down.t(), out=s)
    s.mul_(share.unsqueeze(1))
