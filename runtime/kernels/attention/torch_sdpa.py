"""attention through torch's scaled_dot_product_attention."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from firmtoken.runtime.kernels.attention.paged import add_gate, segment_keys_values
from firmtoken.runtime.kernels.batch import Batch


def attention(
    batch: Batch,
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    o: torch.Tensor,
    qkv: torch.Tensor | None = None,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    gated: bool,
    page_size: int,
    scale: float,
) -> None:
    """o[T,Hq*D] of causal attention over each segment's pages."""
    by_head = (q.shape[0], num_q_heads, head_dim)
    for segment in batch.segments:
        keys, values = segment_keys_values(kv, segment)
        rows = slice(segment.first, segment.first + segment.rows)
        attended = scaled_dot_product_attention(
            q.view(by_head)[rows].transpose(0, 1).unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            attn_mask=causal_mask(segment.start, segment.rows) if segment.rows > 1 else None,
            scale=scale,
            enable_gqa=num_q_heads != num_kv_heads,
        )  # [1, Hq, R, D]
        o.view(by_head)[rows].copy_(attended[0].transpose(0, 1))
    if gated:
        assert qkv is not None, "its gates are there"
        add_gate(o, qkv, num_q_heads, head_dim)
    if batch.real_rows < batch.rows:
        o[batch.real_rows :].zero_()


def causal_mask(start: int, num_rows: int) -> torch.Tensor:
    """bool [R, start + R]: row r sees the keys 0..start + r."""
    return torch.ones(num_rows, start + num_rows, dtype=torch.bool).tril_(start)
