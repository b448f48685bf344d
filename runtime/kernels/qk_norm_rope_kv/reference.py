"""qk_norm_rope_kv in plain torch."""

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.rotary import write_rotated


def qk_norm_rope_kv(
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
    gated: bool,
    page_size: int,
) -> None:
    """q[T,Hq*D] and this launch's rows of kv[2, pages, page_size, Hkv, D]."""
    num_rows = qkv.shape[0]
    # Head-sized columns: query heads (each followed by its gate, if gated), keys, values.
    columns = qkv.view(num_rows, -1, head_dim)
    stride = 2 if gated else 1
    first_key = num_q_heads * stride
    first_value = first_key + num_kv_heads
    queries = rms_norm(columns[:, :first_key:stride], (head_dim,), q_norm, eps)
    keys = rms_norm(columns[:, first_key:first_value], (head_dim,), k_norm, eps)
    write_rotated(
        batch,
        queries=queries,
        keys=keys,
        values=columns[:, first_value:],
        q=q,
        kv=kv,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
    )
