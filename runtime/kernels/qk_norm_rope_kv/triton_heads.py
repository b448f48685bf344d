"""qk_norm_rope_kv launched on a GPU: a program for each head of each row."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.head_writes import HeadShape
from firmtoken.runtime.kernels.launch_heads import launch_heads


def qk_norm_rope_kv(
    rows: DeviceRows,
    *,
    qkv: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    rope_theta: float,
    eps: float,
    gated: bool,
    page_size: int,
    warps: int,
    early: bool,
) -> None:
    """q[T,Hq*D] and this launch's rows of kv[2, pages, page_size, Hkv, D], bf16 or e4m3fn; head_dim a power of two."""
    shape = HeadShape(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
        gated=gated,
        whole_row=False,
    )
    launch_heads(rows, qkv, q, kv, q_norm, k_norm, eps=eps, warps=warps, early=early, shape=shape)
