"""head with bf16 weights, launched on a GPU: the norm first, then the product of `linear`."""

import torch

from firmtoken.runtime.kernels.add_norm.triton_rows import add_norm
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.triton_bf16 import linear


def head(
    rows: DeviceRows | None,
    *,
    last: torch.Tensor,
    norm: torch.Tensor,
    w: torch.Tensor,
    logits: torch.Tensor,
    workspace: torch.Tensor,
    eps: float,
    warps: int,
    early: bool,
    **tuning: int,
) -> None:
    """logits[S,V] = rmsnorm(last[S,H]) * norm[H] times w[V,H]^T; last and w bf16, norm fp32.

    `workspace`: bytes, for S rows of H in bf16. `tuning`: the fields of `linear.launch_products.Tuning` but `early`.
    """
    normed = workspace.view(last.dtype)[: last.numel()].view(last.shape)
    add_norm(rows, hid=last, h=normed, norm=norm, eps=eps, warps=warps, early=early)
    linear(rows, x=normed, w=w, y=logits, early=early, **tuning)
