"""row_norm_rope_kv in plain torch."""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.rotary import write_rotated


def row_norm_rope_kv(
    batch: Batch,
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
    page_size: int,
) -> None:
    """q[T,Hq*D] and this launch's rows of kv[2, pages, page_size, Hkv, D]."""
    num_rows = qkv.shape[0]
    q_width, kv_width = num_q_heads * head_dim, num_kv_heads * head_dim
    query, key = qkv[:, :q_width], qkv[:, q_width : q_width + kv_width]
    value = qkv[:, q_width + kv_width :]
    queries = rms_norm(query, (q_width,), q_norm, eps).view(num_rows, num_q_heads, head_dim)
    keys = rms_norm(key, (kv_width,), k_norm, eps).view(num_rows, num_kv_heads, head_dim)
    write_rotated(
        batch,
        queries=queries,
        keys=keys,
        values=value.view(num_rows, num_kv_heads, head_dim),
        q=q,
        kv=kv,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
    )
