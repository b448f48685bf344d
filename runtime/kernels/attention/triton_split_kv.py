"""attention where each sequence has one row, launched on a GPU: parts of all sequences, then their sums joined."""

import torch

from firmtoken.runtime.kernels.attention.split_kv import (
    JOIN_WARPS,
    attend_parts,
    join_constants,
    join_parts,
    part_constants,
)
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options


def attention(
    rows: DeviceRows,
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    o: torch.Tensor,
    workspace: torch.Tensor,
    qkv: torch.Tensor | None = None,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    gated: bool,
    page_size: int,
    scale: float,
    fp8_units: bool,
    parts: int,
    block: int,
    least: int,
    columns: int,
    warps: int,
    stages: int,
    early: bool,
) -> None:
    """o[T,Hq*D] of causal attention over each sequence's pages, kv bf16 or e4m3fn.

    `workspace`: bytes of at least parts * Hq * (D + 2) fp32; what it holds need not last. `parts` is at least the rows.
    `fp8_units`: the card converts e4m3 itself.
    """
    num_rows = q.shape[0]
    workspace = workspace.view(torch.float32)
    totals_at = parts * num_q_heads * head_dim
    assert workspace.numel() >= totals_at + parts * num_q_heads * 2 and num_rows <= parts
    assert page_size % block == 0 or block % page_size == 0
    coded = kv.dtype == torch.float8_e4m3fn
    format_name = ("fp8" if fp8_units else "fp8_bits") if coded else "plain"
    keys, values = (kv.view(torch.uint8) if format_name == "fp8_bits" else kv).unbind(0)
    partial, totals = workspace, workspace[totals_at:]
    attend_parts[(num_kv_heads, parts)](
        q,
        keys,
        values,
        partial,
        totals,
        rows.positions,
        rows.sequences,
        rows.pages,
        num_rows,
        q.stride(0),
        rows.pages.stride(0),
        scale,
        **part_constants(
            num_rows,
            format_name=format_name,
            num_q_heads=num_q_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            page_size=page_size,
            parts=parts,
            block=block,
            least=least,
            stages=stages,
            early=early,
        ),
        num_warps=warps,
        **launch_options(early=early),
    )
    join_parts[(num_q_heads, head_dim // columns, num_rows)](
        partial,
        totals,
        # Without gates it is not read, but a pointer must be given.
        o if qkv is None else qkv,
        o,
        rows.positions,
        rows.sequences,
        num_rows,
        o.stride(0),
        0 if qkv is None else qkv.stride(0),
        **join_constants(
            num_rows,
            num_q_heads=num_q_heads,
            head_dim=head_dim,
            gated=gated,
            parts=parts,
            block=block,
            least=least,
            columns=columns,
            early=early,
        ),
        num_warps=JOIN_WARPS,
        **launch_options(early=early),
    )
