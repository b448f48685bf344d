"""Attention of one row a sequence over its pages, split over the processors: the two Triton functions of decode.

How many tokens a part has is found on the device, by every program for itself, from the lengths: sequences are cut into
blocks of BLOCK tokens, parts into equal runs of blocks, such that the parts of all sequences together are no more than
the grid has; what is left of the grid ends at once. With b blocks in all, P parts and T rows,

    run = max(LEAST, ceil(b / max(P - T, 1)))        sum of ceil(b_t / run) <= b / run + T <= P

    partial  [parts, Hq, D]   fp32, not divided by the sum
    totals   [parts, Hq, 2]   fp32: maximum of the scores, in powers of two, and sum of their powers

FP8 keys and values (e4m3fn, scale 1) become fp16, in which every code is exact: by the card's own instruction, or by
moving bits, which gives the value * 2^-8.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last

LOG2_E = tl.constexpr(1.4426950408889634)
MIN_TILE = 16
"""Rows and columns that a tensor core's product has at least."""
JOIN_WARPS = 4
FEW_ROWS = 4
"""With one row or two nothing is gained, and with two MiniMax's form spilled 8 B a thread on capability 12.0."""
INTEGERS = ("num_rows", "q_stride", "pages_stride")
GATED_INTEGERS = ("num_rows", "o_stride", "qkv_stride")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def attend_parts(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,
    totals_ptr,
    positions_ptr,
    sequences_ptr,
    pages_ptr,
    num_rows,
    q_stride,
    pages_stride,
    scale,
    FORMAT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (h, p): kv head h and its GROUP query heads, part p of PARTS.

    FORMAT: `plain` (q and kv of one float type), `fp8` (converted by the card) or `fp8_bits` (kv seen as uint8).
    ROWS, TILE: at least the rows, and GROUP, as powers of two. BLOCK and PAGE divide one another. EARLY
    (`early_start.py`): positions and sequences must be older than the launch before.
    """
    kv_head = tl.program_id(0)
    part = tl.program_id(1)
    run, ends = _share(positions_ptr, sequences_ptr, num_rows, ROWS, PARTS, BLOCK, LEAST)
    passed = ends <= part
    row = tl.sum(passed.to(tl.int32), axis=0)
    if EARLY:
        start_next_after_last()
    if row < num_rows:
        place = part - tl.max(tl.where(passed, ends, 0), axis=0)
        sequence = tl.load(sequences_ptr + row)
        first = place * run * BLOCK
        end = tl.minimum(tl.load(positions_ptr + row) + 1, first + run * BLOCK)
        head = tl.arange(0, TILE)
        column = tl.arange(0, WIDTH)
        has_head = head < GROUP
        query_head = kv_head * GROUP + head
        q_at = row.to(tl.int64) * q_stride + query_head[:, None] * WIDTH + column[None, :]
        q = tl.load(q_ptr + q_at, mask=has_head[:, None], other=0.0)
        if FORMAT != "plain":
            q = q.to(tl.float16)
        largest = tl.full((TILE,), float("-inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        out = tl.zeros((TILE, WIDTH), tl.float32)
        page_row_ptr = pages_ptr + sequence.to(tl.int64) * pages_stride
        SHIFT: tl.constexpr = 256.0 if FORMAT == "fp8_bits" else 1.0
        for start in tl.range(first, end, BLOCK, num_stages=STAGES):
            token = start + tl.arange(0, BLOCK)
            inside = token < end
            if PAGE % BLOCK == 0:
                page = tl.load(page_row_ptr + start // PAGE).to(tl.int64)
                slot = page * PAGE + (start % PAGE + tl.arange(0, BLOCK))
            else:
                page = tl.load(page_row_ptr + token // PAGE, mask=inside, other=0).to(tl.int64)
                slot = page * PAGE + token % PAGE
            at = (slot * (KV_HEADS * WIDTH) + kv_head * WIDTH)[:, None] + column[None, :]
            k = widen(tl.load(k_ptr + at, mask=inside[:, None], other=0.0), FORMAT)
            scores = tl.dot(q, tl.trans(k)) * (scale * (LOG2_E * SHIFT))
            scores = tl.where(inside[None, :], scores, float("-inf"))
            new_largest = tl.maximum(largest, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_largest[:, None])
            fade = tl.exp2(largest - new_largest)
            total = total * fade + tl.sum(weights, axis=1)
            v = widen(tl.load(v_ptr + at, mask=inside[:, None], other=0.0), FORMAT)
            out = tl.dot(weights.to(v.dtype), v, out * fade[:, None])
            largest = new_largest
        at_head = part * (KV_HEADS * GROUP) + query_head
        tl.store(
            partial_ptr + at_head[:, None] * WIDTH + column[None, :],
            out * SHIFT,
            mask=has_head[:, None],
        )
        tl.store(totals_ptr + at_head * 2, largest, mask=has_head)
        tl.store(totals_ptr + at_head * 2 + 1, total, mask=has_head)


@triton.jit(do_not_specialize=GATED_INTEGERS)
def join_parts(
    partial_ptr,
    totals_ptr,
    qkv_ptr,
    o_ptr,
    positions_ptr,
    sequences_ptr,
    num_rows,
    o_stride,
    qkv_stride,
    Q_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (h, c, t): query head h, the c-th COLUMNS of its columns, row t. MOST: at least PARTS, a power of two.

    EARLY (`early_start.py`): positions, sequences and qkv must be older than the launch before.
    """
    head = tl.program_id(0)
    row = tl.program_id(2)
    _, ends = _share(positions_ptr, sequences_ptr, num_rows, ROWS, PARTS, BLOCK, LEAST)
    before = tl.arange(0, ROWS) < row
    first = tl.max(tl.where(before, ends, 0), axis=0)
    count = tl.max(tl.where(tl.arange(0, ROWS) <= row, ends, 0), axis=0) - first
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if GATED:
        gate = tl.load(
            qkv_ptr + row.to(tl.int64) * qkv_stride + (2 * head + 1) * WIDTH + column
        ).to(tl.float32)
    if EARLY:
        start_next_after_last()
    part = tl.arange(0, MOST)
    at = ((first + part) * Q_HEADS + head) * 2
    maxima = tl.load(totals_ptr + at, mask=part < count, other=float("-inf"))
    largest = tl.max(maxima, axis=0)
    sums = tl.load(totals_ptr + at + 1, mask=part < count, other=0.0)
    # A row without a sequence has no parts: it gets zeros.
    total = tl.sum(tl.where(part < count, sums * tl.exp2(maxima - largest), 0.0), axis=0)
    values_at = partial_ptr + ((first + part) * Q_HEADS + head)[:, None] * WIDTH + column[None, :]
    values = tl.load(values_at, mask=(part < count)[:, None], other=0.0)
    weight = tl.where(part < count, tl.exp2(maxima - largest), 0.0)
    out = tl.sum(values * weight[:, None], axis=0)
    out = tl.where(count > 0, out / total, 0.0)
    if GATED:
        out *= tl.sigmoid(gate)
    tl.store(
        o_ptr + row.to(tl.int64) * o_stride + head * WIDTH + column, out.to(o_ptr.dtype.element_ty)
    )


@triton.jit
def _share(
    positions_ptr,
    sequences_ptr,
    num_rows,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Blocks of a part, and int32 [ROWS]: the number of parts up to and with each row."""
    row = tl.arange(0, ROWS)
    there = row < num_rows
    sequence = tl.load(sequences_ptr + row, mask=there, other=-1)
    length = tl.load(positions_ptr + row, mask=there, other=0) + 1
    blocks = tl.where(sequence >= 0, (length + (BLOCK - 1)) // BLOCK, 0)
    spare = tl.maximum(PARTS - num_rows, 1)
    run = tl.maximum((tl.sum(blocks, axis=0) + spare - 1) // spare, LEAST)
    return run, tl.cumsum((blocks + run - 1) // run, axis=0)


@triton.jit
def widen(x, FORMAT: tl.constexpr):
    """fp16 of FP8; of `fp8_bits` times 2^-8."""
    if FORMAT == "fp8":
        wide = x.to(tl.float16)
    elif FORMAT == "fp8_bits":
        bits = x.to(tl.int16)
        wide = (((bits & 0x7F) << 7) | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True)
    else:
        wide = x
    return wide


def part_constants(
    num_rows: int,
    *,
    format_name: str,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    parts: int,
    block: int,
    least: int,
    stages: int,
    early: bool,
) -> dict[str, int | str]:
    """Constants of `attend_parts`."""
    group = num_q_heads // num_kv_heads
    return {
        "FORMAT": format_name,
        "KV_HEADS": num_kv_heads,
        "GROUP": group,
        "WIDTH": head_dim,
        "PAGE": page_size,
        "ROWS": _rows_of_form(num_rows),
        "PARTS": parts,
        "BLOCK": block,
        "LEAST": least,
        "TILE": max(MIN_TILE, triton.next_power_of_2(group)),
        "STAGES": stages,
        "EARLY": early,
    }


def join_constants(
    num_rows: int,
    *,
    num_q_heads: int,
    head_dim: int,
    gated: bool,
    parts: int,
    block: int,
    least: int,
    columns: int,
    early: bool,
) -> dict[str, int | bool]:
    """Constants of `join_parts`."""
    return {
        "Q_HEADS": num_q_heads,
        "WIDTH": head_dim,
        "GATED": gated,
        "ROWS": _rows_of_form(num_rows),
        "PARTS": parts,
        "BLOCK": block,
        "LEAST": least,
        "MOST": triton.next_power_of_2(parts),
        "COLUMNS": columns,
        "EARLY": early,
    }


def _rows_of_form(num_rows: int) -> int:
    """One form for up to FEW_ROWS rows, then one for each power of two."""
    return max(FEW_ROWS, int(triton.next_power_of_2(num_rows)))


def attention_builds(
    launch: Launch,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    gated: int,
    page_size: int,
    scale: float,
    fp8_units: int,
    parts: int,
    block: int,
    least: int,
    columns: int,
    warps: int,
    stages: int,
    early: int,
) -> tuple[Build, ...]:
    """Both functions for so many rows and fewer; `scale` is an argument."""
    coded = "fp8" if fp8_units else "fp8_bits"
    format_name = coded if launch.format == "fp8" else "plain"
    kv = {"plain": "*bf16", "fp8": "*fp8e4nv", "fp8_bits": "*u8"}[format_name]
    lengths = {"positions_ptr": "*i32", "sequences_ptr": "*i32"}
    heads = {"num_q_heads": num_q_heads, "head_dim": head_dim}
    cut = {"parts": parts, "block": block, "least": least}

    def attend(rows: int) -> Build:
        return Build(
            name=f"parts, {rows} rows",
            function=attend_parts,
            arguments={
                "q_ptr": "*bf16",
                "k_ptr": kv,
                "v_ptr": kv,
                "partial_ptr": "*fp32",
                "totals_ptr": "*fp32",
                **lengths,
                "pages_ptr": "*i32",
                **dict.fromkeys(INTEGERS, "i32"),
                "scale": "fp32",
            },
            constants=part_constants(
                rows,
                format_name=format_name,
                num_kv_heads=num_kv_heads,
                page_size=page_size,
                stages=stages,
                early=bool(early),
                **heads,
                **cut,
            ),
            num_warps=warps,
            grid=(num_kv_heads, parts),
        )

    def join(rows: int) -> Build:
        return Build(
            name=f"join, {rows} rows",
            function=join_parts,
            arguments={
                "partial_ptr": "*fp32",
                "totals_ptr": "*fp32",
                "qkv_ptr": "*bf16",
                "o_ptr": "*bf16",
                **lengths,
                **dict.fromkeys(GATED_INTEGERS, "i32"),
            },
            constants=join_constants(
                rows, gated=bool(gated), columns=columns, early=bool(early), **heads, **cut
            ),
            num_warps=JOIN_WARPS,
            grid=(num_q_heads, head_dim // columns, rows),
        )

    sizes = sorted({_rows_of_form(rows) for rows in range(1, launch.num_rows + 1)})
    return tuple(make(rows) for make in (attend, join) for rows in sizes)
