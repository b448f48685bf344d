"""qk_norm_rope_kv in plain torch."""

from functools import lru_cache

import torch
from torch.nn.functional import rms_norm

from firmtoken.runtime.kernels.batch import Batch


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
    cos, sin = rotation(batch.positions, rotary_dim, rope_theta)
    queries = rms_norm(columns[:, :first_key:stride], (head_dim,), q_norm, eps)
    keys = rms_norm(columns[:, first_key:first_value], (head_dim,), k_norm, eps)
    q_out = q.view(num_rows, num_q_heads, head_dim)
    q_out.copy_(queries)
    rotate(queries, q_out, cos, sin)
    rotated = keys.clone()
    rotate(keys, rotated, cos, sin)
    tokens = kv.view(2, -1, num_kv_heads, head_dim)  # [2, token slots, Hkv, D]
    tokens[0].index_copy_(0, batch.token_slots, rotated)
    tokens[1].index_copy_(0, batch.token_slots, columns[:, first_value:])


def rotation(
    positions: torch.Tensor, rotary_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [T, 1, rotary_dim / 2]."""
    angles = positions.view(-1, 1, 1) * inverse_frequencies(rotary_dim, theta)
    return angles.cos(), angles.sin()


@lru_cache
def inverse_frequencies(rotary_dim: int, theta: float) -> torch.Tensor:
    """theta^(-2i / rotary_dim), computed as transformers does: in fp32 throughout."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def rotate(x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Writes the rotated columns of x[T, heads, D] to `out`; the columns after them stay."""
    half = cos.shape[-1]
    left, right = x[..., :half], x[..., half : 2 * half]
    torch.sub(left * cos, right * sin, out=out[..., :half])
    torch.add(right * cos, left * sin, out=out[..., half : 2 * half])
