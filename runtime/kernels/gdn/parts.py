"""What both forms of the gated delta net share: its columns, its gates, unit vectors, the output norm.

Legend: R rows, C channels = 2*Hk*Dk + Hv*Dv, K conv taps.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import rms_norm, silu, softplus

UNIT_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Heads and their sizes."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int

    @property
    def key_columns(self) -> int:
        """Columns of q, and of k."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_columns(self) -> int:
        """Columns of v, of z, and of the output."""
        return self.num_value_heads * self.value_head_dim

    @property
    def channels(self) -> int:
        """Columns that pass through the convolution: q, k and v."""
        return 2 * self.key_columns + self.value_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The projections of R rows, taken apart."""

    qkv: torch.Tensor
    z: torch.Tensor
    b: torch.Tensor
    a: torch.Tensor


def take_apart(u: torch.Tensor, shape: Shape) -> Columns:
    """Views of u[R, C + Hv*Dv + 2*Hv]."""
    heads = shape.num_value_heads
    qkv, z, b, a = torch.split(u, [shape.channels, shape.value_columns, heads, heads], dim=1)
    return Columns(qkv=qkv, z=z, b=b, a=a)


def log_decay(a: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor) -> torch.Tensor:
    """g[R,Hv] <= 0: the state is multiplied by exp(g)."""
    return softplus(a + dt_bias).mul_(a_log.exp().neg_())


def unit_queries_keys(mixed: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """q (times Dk^-0.5) and k, [R,Hk,Dk], from the convolved columns [R,C]."""
    by_head = mixed[:, : 2 * shape.key_columns].view(
        mixed.shape[0], 2, shape.num_key_heads, shape.key_head_dim
    )
    lengths = by_head.square().sum(dim=-1, keepdim=True).add_(UNIT_EPS)
    queries, keys = (by_head * lengths.rsqrt_()).unbind(1)
    return queries * shape.key_head_dim**-0.5, keys


def for_value_heads(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """[R,Hk,D] -> [R,Hv,D]: value head j takes key head j // (Hv / Hk)."""
    num_rows, num_heads, width = x.shape
    repeats = shape.num_value_heads // num_heads
    if repeats == 1:
        return x
    return x.unsqueeze(2).expand(num_rows, num_heads, repeats, width).reshape(num_rows, -1, width)


def write_output(
    heads: torch.Tensor, z: torch.Tensor, norm: torch.Tensor, eps: float, o: torch.Tensor
) -> None:
    """o[R,Hv*Dv] = rmsnorm(heads[R,Hv,Dv]) * norm[Dv] * silu(z)"""
    normed = rms_norm(heads, norm.shape, norm, eps)
    torch.mul(normed.view(o.shape), silu(z), out=o)
