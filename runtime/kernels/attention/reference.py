"""attention in plain torch: own softmax, a block of rows at a time.

Legend: R rows of a block, L keys they may see, G = Hq / Hkv query heads per kv head.
"""

import torch

from firmtoken.runtime.kernels.attention.paged import add_gate, segment_keys_values
from firmtoken.runtime.kernels.batch import Batch

BLOCK_ROWS = 64
"""Bounds the scores to Hq x 64 x L numbers."""


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
    grouped = (q.shape[0], num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    queries = q.view(grouped)
    out = o.view(grouped)
    for segment in batch.segments:
        keys, values = segment_keys_values(kv, segment)  # [Hkv, L, D]
        for block in range(0, segment.rows, BLOCK_ROWS):
            num_rows = min(BLOCK_ROWS, segment.rows - block)
            first = segment.first + block
            seen = segment.start + block + num_rows
            attend(
                queries[first : first + num_rows],
                keys[:, :seen],
                values[:, :seen],
                out[first : first + num_rows],
                scale,
            )
    if gated:
        assert qkv is not None, "its gates are there"
        add_gate(o, qkv, num_q_heads, head_dim)
    if batch.real_rows < batch.rows:
        o[batch.real_rows :].zero_()


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    """Rows [R,Hkv,G,D] that end at the last of the keys [Hkv,L,D]; writes out[R,Hkv,G,D]."""
    num_rows, num_kv_heads, group, head_dim = queries.shape
    flat = (queries * scale).transpose(0, 1).reshape(num_kv_heads, num_rows * group, head_dim)
    scores = torch.bmm(flat, keys.transpose(1, 2))  # [Hkv, R*G, L]
    if num_rows > 1:
        mask_future(scores, num_rows, group)
    weighted = torch.bmm(torch.softmax(scores, dim=-1), values)
    out.copy_(weighted.view(num_kv_heads, num_rows, group, head_dim).transpose(0, 1))


def mask_future(scores: torch.Tensor, num_rows: int, group: int) -> None:
    """Row r of R sees all but the last R - 1 - r keys."""
    seen = scores.shape[2]
    recent = scores.view(-1, num_rows, group, seen)[..., -num_rows:]  # [Hkv, R, G, R]
    future = torch.ones(num_rows, num_rows, dtype=torch.bool).triu_(1)
    recent.masked_fill_(future.view(num_rows, 1, num_rows), -torch.inf)
