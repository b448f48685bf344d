"""attention of many rows of a few sequences, launched on a GPU: pages widened, rows in blocks, parts joined."""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.attention.prefill_builds import attend_constants
from firmtoken.runtime.kernels.attention.prefill_parts import (
    JOIN_WARPS,
    RUN,
    join_constants,
    join_rows,
    parts_of,
)
from firmtoken.runtime.kernels.attention.prefill_rows import attend_rows
from firmtoken.runtime.kernels.attention.widen_pages import (
    WIDEN_WARPS,
    Pages,
    widen_constants,
    widen_pages,
)
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.row_blocks import most_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Constants of the op."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    gated: bool
    page_size: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Constants of both cards."""

    sequences: int
    """A power of two, at least those of a launch."""
    programs: int
    """Up to so many share the tokens of few rows."""
    tile: int
    """Rows of a product, at least Hq / Hkv."""
    block: int
    """Tokens of a page at a time."""
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """How many tokens lie wide (`widen_pages.py`), and how they are read."""

    tokens: int
    block: int
    """Of them at a time."""
    stages: int
    q_again: bool
    """Each loop over tokens loads q."""


NOTHING_WIDE = Wide(tokens=0, block=0, stages=0, q_again=False)


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
    **tiling: int,
) -> None:
    """o[T,Hq*D] of causal attention over each sequence's pages, kv of q's type. Rows contiguous.

    Rows of a sequence are those from its first row to that of the next. `tiling`: of `Tiling`. `workspace`: bytes of
    what `prefill_parts.py` has, programs * tile * (D + 2) fp32; what it holds need not last.
    """
    heads = Heads(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        gated=gated,
        page_size=page_size,
        scale=scale,
    )
    keys, values = kv.unbind(0)
    _attend(
        rows, q, keys, values, o, qkv, workspace, heads, Tiling(**tiling), "plain", NOTHING_WIDE
    )


def attention_fp8(
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
    wide_tokens: int,
    wide_block: int,
    wide_stages: int,
    q_again: bool,
    **tiling: int,
) -> None:
    """The same with kv e4m3fn; `fp8_units`: the card converts it itself. Behind the parts the workspace has the keys
    and values of `wide_tokens` in q's type.
    """
    heads = Heads(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        gated=gated,
        page_size=page_size,
        scale=scale,
    )
    keys, values = (kv if fp8_units else kv.view(torch.uint8)).unbind(0)
    format_name = "fp8" if fp8_units else "fp8_bits"
    wide = Wide(tokens=wide_tokens, block=wide_block, stages=wide_stages, q_again=q_again)
    _attend(rows, q, keys, values, o, qkv, workspace, heads, Tiling(**tiling), format_name, wide)


def _attend(
    rows: DeviceRows,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    o: torch.Tensor,
    qkv: torch.Tensor | None,
    workspace: torch.Tensor,
    heads: Heads,
    tiling: Tiling,
    format_name: str,
    wide: Wide,
) -> None:
    num_rows, num_sequences = q.shape[0], rows.live.shape[0]
    num_q_heads, num_kv_heads, head_dim = heads.num_q_heads, heads.num_kv_heads, heads.head_dim
    page_size, tile = heads.page_size, tiling.tile
    group = num_q_heads // num_kv_heads
    assert num_sequences <= tiling.sequences and group <= tile
    assert page_size % tiling.block == 0 or tiling.block % page_size == 0
    assert RUN.value % tiling.block == 0
    assert q.is_contiguous() and o.is_contiguous() and (qkv is None or qkv.is_contiguous())
    assert (q if qkv is None else qkv).numel() < 2**31, "elements of rows are counted in int32"
    # Without gates it is not read, but a pointer must be given.
    qkv = o if qkv is None else qkv
    parts_end = 4 * tiling.programs * tile * head_dim
    totals_end = parts_end + 4 * tiling.programs * tile * 2
    partial = workspace[:parts_end].view(torch.float32)
    totals = workspace[parts_end:totals_end].view(torch.float32)
    pages = Pages(
        format_name=format_name,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        sequences=tiling.sequences,
        wide=wide.tokens // page_size,
    )
    lying_wide = q
    if pages.wide:
        assert RUN.value % wide.block == 0 and wide.block % tiling.block == 0
        lying_wide = workspace[totals_end:].view(q.dtype)
        half = wide.tokens * num_kv_heads * head_dim
        assert 2 * half <= lying_wide.numel() and half < 2**31
        widen_pages[(pages.wide, 2)](
            keys,
            values,
            lying_wide,
            rows.first_rows,
            rows.starts,
            rows.pages,
            num_sequences,
            rows.pages.stride(0),
            **widen_constants(pages),
            num_warps=WIDEN_WARPS,
        )
    blocks = most_blocks(num_rows, num_sequences, tile // group, aligned=False)
    parts = parts_of(
        num_rows, rows=tile // group, num_kv_heads=num_kv_heads, programs=tiling.programs
    )
    attend_rows[(num_kv_heads, blocks, parts)](
        q,
        keys,
        values,
        lying_wide,
        qkv,
        o,
        partial,
        totals,
        rows.num_rows,
        rows.first_rows,
        rows.starts,
        rows.pages,
        num_sequences,
        num_rows,
        rows.pages.stride(0),
        parts,
        heads.scale,
        **attend_constants(
            pages,
            num_q_heads=num_q_heads,
            gated=heads.gated,
            tile=tile,
            block=tiling.block,
            stages=tiling.stages,
            wide_block=wide.block,
            wide_stages=wide.stages,
            q_again=wide.q_again,
        ),
        num_warps=tiling.warps,
    )
    if parts > 1:
        join_rows[(num_q_heads, num_rows)](
            partial,
            totals,
            qkv,
            o,
            rows.sequences,
            rows.first_rows,
            rows.starts,
            num_rows,
            parts,
            **join_constants(
                pages,
                num_q_heads=num_q_heads,
                gated=heads.gated,
                tile=tile,
                programs=tiling.programs,
            ),
            num_warps=JOIN_WARPS,
        )
