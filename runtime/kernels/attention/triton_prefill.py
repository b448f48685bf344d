"""attention of many rows of a few sequences, launched on a GPU: a program for some rows and one head of keys."""

import torch

from firmtoken.runtime.kernels.attention.prefill_rows import attend_rows, prefill_constants
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.row_blocks import most_blocks


def attention(
    rows: DeviceRows,
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
    fp8_units: bool,
    sequences: int,
    tile: int,
    block: int,
    warps: int,
    stages: int,
) -> None:
    """o[T,Hq*D] of causal attention over each sequence's pages, kv bf16 or e4m3fn. Rows contiguous.

    Rows of a sequence are those from its first row to that of the next. `fp8_units`: the card converts e4m3 itself.
    `sequences`: a power of two, at least those of `rows`. `tile`: rows of a product, at least Hq / Hkv.
    """
    num_rows, num_sequences = q.shape[0], rows.live.shape[0]
    group = num_q_heads // num_kv_heads
    assert num_sequences <= sequences and group <= tile
    assert page_size % block == 0 or block % page_size == 0
    assert q.is_contiguous() and o.is_contiguous() and (qkv is None or qkv.is_contiguous())
    assert (q if qkv is None else qkv).numel() < 2**31, "elements of rows are counted in int32"
    coded = kv.dtype == torch.float8_e4m3fn
    format_name = ("fp8" if fp8_units else "fp8_bits") if coded else "plain"
    keys, values = (kv.view(torch.uint8) if format_name == "fp8_bits" else kv).unbind(0)
    blocks = most_blocks(num_rows, num_sequences, tile // group, aligned=False)
    attend_rows[(num_kv_heads, blocks)](
        q,
        keys,
        values,
        # Without gates it is not read, but a pointer must be given.
        o if qkv is None else qkv,
        o,
        rows.num_rows,
        rows.first_rows,
        rows.starts,
        rows.pages,
        num_sequences,
        num_rows,
        rows.pages.stride(0),
        scale,
        **prefill_constants(
            format_name=format_name,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            page_size=page_size,
            gated=gated,
            sequences=sequences,
            tile=tile,
            block=block,
            stages=stages,
        ),
        num_warps=warps,
    )
