"""row_norm_rope_kv in plain torch."""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.qk_norm_rope_kv.reference import rotate, rotation


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
    cos, sin = rotation(batch.positions, rotary_dim, rope_theta)
    q_out = q.view(num_rows, num_q_heads, head_dim)
    q_out.copy_(queries)
    rotate(queries, q_out, cos, sin)
    rotated = keys.clone()
    rotate(keys, rotated, cos, sin)
    tokens = kv.view(2, -1, num_kv_heads, head_dim)  # [2, token slots, Hkv, D]
    tokens[0].index_copy_(0, batch.token_slots, rotated)
    tokens[1].index_copy_(0, batch.token_slots, value.view(num_rows, num_kv_heads, head_dim))
