"""A sequence's keys and values from its pages, and the output gate."""

import torch

from firmtoken.runtime.kernels.batch import Segment


def segment_keys_values(kv: torch.Tensor, segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [Hkv, L, D] of all tokens up to the segment's last row, from kv[2, pages, page_size, Hkv, D]."""
    seen = segment.start + segment.rows
    num_pages = -(-seen // kv.shape[2])
    tokens = take_pages(kv, segment.pages[:num_pages]).flatten(1, 2)  # [2, tokens, Hkv, D]
    keys, values = tokens[:, :seen].transpose(1, 2).unbind(0)
    return keys, values


def take_pages(kv: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    """[2, n, page_size, Hkv, D]: a view where the pages lie in a row, else a copy."""
    numbers = pages.tolist()
    first, end = numbers[0], numbers[0] + len(numbers)
    if numbers == list(range(first, end)):
        return kv[:, first:end]
    return kv.index_select(1, pages)


def add_gate(o: torch.Tensor, qkv: torch.Tensor, num_q_heads: int, head_dim: int) -> None:
    """o[T,Hq*D] *= sigmoid of the gates, which follow each query head in qkv."""
    heads = qkv.view(qkv.shape[0], -1, head_dim)
    gates = heads[:, 1 : 2 * num_q_heads : 2]
    o.view(gates.shape).mul_(gates.sigmoid())
