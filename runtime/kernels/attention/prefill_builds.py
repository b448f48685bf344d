"""What prefill attention is compiled to, and the constants of its rows."""

from firmtoken.runtime.kernels.attention.prefill_parts import (
    JOIN_INTEGERS,
    JOIN_WARPS,
    join_constants,
    join_rows,
    most_parts,
)
from firmtoken.runtime.kernels.attention.prefill_rows import INTEGERS, attend_rows
from firmtoken.runtime.kernels.attention.widen_pages import (
    PAGE_INTEGERS,
    WIDEN_WARPS,
    Pages,
    widen_constants,
    widen_pages,
)
from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.row_blocks import most_blocks

FEWEST_SEQUENCES = 16
"""With 4 or 8 places for them heads of 256 spill 16 B a thread on 9.0 (Triton 3.6.0), with 16 or more none."""


def attend_constants(
    pages: Pages,
    *,
    num_q_heads: int,
    gated: bool,
    tile: int,
    block: int,
    stages: int,
    wide_block: int,
    wide_stages: int,
    q_again: bool,
) -> dict[str, int | str | bool]:
    """Constants of `attend_rows`."""
    return {
        "FORMAT": pages.format_name,
        "KV_HEADS": pages.num_kv_heads,
        "GROUP": num_q_heads // pages.num_kv_heads,
        "WIDTH": pages.head_dim,
        "PAGE": pages.page_size,
        "GATED": gated,
        "SEQUENCES": max(pages.sequences, FEWEST_SEQUENCES),
        "TILE": tile,
        "BLOCK": block,
        "STAGES": stages,
        "WIDE": pages.wide,
        "WIDE_BLOCK": wide_block,
        "WIDE_STAGES": wide_stages,
        "Q_AGAIN": q_again,
    }


def prefill_builds(
    launch: Launch,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    gated: int,
    page_size: int,
    scale: float,
    sequences: int,
    programs: int,
    tile: int,
    block: int,
    warps: int,
    stages: int,
    fp8_units: int = 1,
    wide_tokens: int = 0,
    wide_block: int = 0,
    wide_stages: int = 0,
    q_again: int = 0,
) -> tuple[Build, ...]:
    """The one form of each function; `scale` is an argument."""
    coded = "fp8" if fp8_units else "fp8_bits"
    format_name = coded if launch.format == "fp8" else "plain"
    kv = dict.fromkeys(
        ("k_ptr", "v_ptr"), {"plain": "*bf16", "fp8": "*fp8e4nv", "fp8_bits": "*u8"}[format_name]
    )
    starts = dict.fromkeys(("first_rows_ptr", "starts_ptr"), "*i32")
    rows = tile // (num_q_heads // num_kv_heads)
    pages = Pages(
        format_name=format_name,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        page_size=page_size,
        sequences=sequences,
        wide=wide_tokens // page_size,
    )
    attend = Build(
        name="rows",
        function=attend_rows,
        arguments={
            "q_ptr": "*bf16",
            **kv,
            **dict.fromkeys(("wide_ptr", "qkv_ptr", "o_ptr"), "*bf16"),
            **dict.fromkeys(("partial_ptr", "totals_ptr"), "*fp32"),
            "num_rows_ptr": "*i32",
            **starts,
            "pages_ptr": "*i32",
            **dict.fromkeys(INTEGERS, "i32"),
            "scale": "fp32",
        },
        constants=attend_constants(
            pages,
            num_q_heads=num_q_heads,
            gated=bool(gated),
            tile=tile,
            block=block,
            stages=stages,
            wide_block=wide_block,
            wide_stages=wide_stages,
            q_again=bool(q_again),
        ),
        num_warps=warps,
        grid=(
            num_kv_heads,
            most_blocks(launch.num_rows, sequences, rows, aligned=False),
            most_parts(num_kv_heads=num_kv_heads, programs=programs),
        ),
    )
    join = Build(
        name="join",
        function=join_rows,
        arguments={
            **dict.fromkeys(("partial_ptr", "totals_ptr"), "*fp32"),
            **dict.fromkeys(("qkv_ptr", "o_ptr"), "*bf16"),
            "sequences_ptr": "*i32",
            **starts,
            **dict.fromkeys(JOIN_INTEGERS, "i32"),
        },
        constants=join_constants(
            pages, num_q_heads=num_q_heads, gated=bool(gated), tile=tile, programs=programs
        ),
        num_warps=JOIN_WARPS,
        grid=(num_q_heads, launch.num_rows),
    )
    if not pages.wide:
        return (attend, join)
    widen = Build(
        name="wide pages",
        function=widen_pages,
        arguments={
            **kv,
            "wide_ptr": "*bf16",
            **starts,
            "pages_ptr": "*i32",
            **dict.fromkeys(PAGE_INTEGERS, "i32"),
        },
        constants=widen_constants(pages),
        num_warps=WIDEN_WARPS,
        grid=(pages.wide, 2),
    )
    return (widen, attend, join)
