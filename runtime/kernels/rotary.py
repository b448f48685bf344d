"""Rotation of queries and keys by position and the write of keys and values to their pages, in plain torch."""

from functools import lru_cache

import torch

from firmtoken.runtime.kernels.batch import Batch


def write_rotated(
    batch: Batch,
    *,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    rotary_dim: int,
    rope_theta: float,
) -> None:
    """Rotated queries[T, Hq, D] to q[T, Hq*D], rotated keys and values[T, Hkv, D] to this launch's rows of kv."""
    cos, sin = _rotation(batch.positions, rotary_dim, rope_theta)
    q_out = q.view(queries.shape)
    q_out.copy_(queries)
    _rotate(queries, q_out, cos, sin)
    rotated = keys.clone()
    _rotate(keys, rotated, cos, sin)
    tokens = kv.view(2, -1, *keys.shape[1:])  # [2, token slots, Hkv, D]
    tokens[0].index_copy_(0, batch.token_slots, rotated)
    tokens[1].index_copy_(0, batch.token_slots, values)


def _rotation(
    positions: torch.Tensor, rotary_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [T, 1, rotary_dim / 2]."""
    angles = positions.view(-1, 1, 1) * _inverse_frequencies(rotary_dim, theta)
    return angles.cos(), angles.sin()


@lru_cache
def _inverse_frequencies(rotary_dim: int, theta: float) -> torch.Tensor:
    """theta^(-2i / rotary_dim), computed as transformers does: in fp32 throughout."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _rotate(x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Writes the rotated columns of x[T, heads, D] to `out`; the columns after them stay."""
    half = cos.shape[-1]
    left, right = x[..., :half], x[..., half : 2 * half]
    torch.sub(left * cos, right * sin, out=out[..., :half])
    torch.add(right * cos, left * sin, out=out[..., half : 2 * half])
