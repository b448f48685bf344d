"""Few rows behind many tokens: the tokens are shared out to several programs, whose results are joined (in Triton).

A block of rows has one program for each head of keys; with few rows most processors would have nothing to do. So there
are `parts` programs, as many as the launch has processors for, and each takes a run of the tokens that all rows of the
block see; the last one takes those at the end too, of which a row sees some. Where a run would be short there are fewer
parts, and where one is left it writes the outputs itself.

    partial  [parts, T, Hq, D]   fp32, not divided by the sum
    totals   [parts, T, Hq, 2]   fp32: maximum of the scores, in powers of two, and sum of their powers
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.attention.widen_pages import Pages

RUN = tl.constexpr(64)
"""Runs are multiples of it, as blocks of tokens divide it."""
LEAST = tl.constexpr(4)
"""Of them in a part: a second launch should have something to save. Not measured."""
JOIN_WARPS = 4
JOIN_INTEGERS = ("num_rows", "parts")


@triton.jit
def share_tokens(lowest, end, part, parts):
    """How many parts there are, and the tokens of one of them; `lowest` is the position of a block's first row."""
    runs = lowest // RUN + 1
    run = tl.maximum((runs + parts - 1) // parts, LEAST)
    count = (runs + run - 1) // run
    last = tl.where(part + 1 == count, end, (part + 1) * run * RUN)
    return count, part * run * RUN, last


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=JOIN_INTEGERS)
def join_rows(
    partial_ptr,
    totals_ptr,
    qkv_ptr,
    o_ptr,
    sequences_ptr,
    first_rows_ptr,
    starts_ptr,
    num_rows,
    parts,
    ROWS: tl.constexpr,
    Q_HEADS: tl.constexpr,
    QKV_WIDTH: tl.constexpr,
    WIDTH: tl.constexpr,
    GATED: tl.constexpr,
    MOST: tl.constexpr,
):
    """Program (h, t): query head h of row t, if its block has more than one part. MOST: at least `parts`."""
    head = tl.program_id(0)
    row = tl.program_id(1)
    sequence = tl.load(sequences_ptr + row)
    if sequence >= 0:
        within = row - tl.load(first_rows_ptr + sequence)
        lowest = tl.load(starts_ptr + sequence) + within // ROWS * ROWS
        count, _, _ = share_tokens(lowest, 0, 0, parts)
        if count > 1:
            column = tl.arange(0, WIDTH)
            part = tl.arange(0, MOST)
            there = part < count
            at = (part * num_rows + row) * Q_HEADS + head
            largest = tl.load(totals_ptr + at * 2, mask=there, other=float("-inf"))
            sums = tl.load(totals_ptr + at * 2 + 1, mask=there, other=0.0)
            most = tl.max(largest, axis=0)
            total = tl.sum(sums * tl.exp2(largest - most), axis=0)
            out = tl.zeros((WIDTH,), tl.float32)
            for index in tl.range(0, count):
                own = (index * num_rows + row) * Q_HEADS + head
                weight = tl.exp2(tl.load(totals_ptr + own * 2) - most)
                out += weight * tl.load(partial_ptr + own.to(tl.int64) * WIDTH + column)
            out /= total
            if GATED:
                gate_at = row * QKV_WIDTH + (2 * head + 1) * WIDTH
                out *= tl.sigmoid(tl.load(qkv_ptr + gate_at + column).to(tl.float32))
            o_at = (row * Q_HEADS + head) * WIDTH
            tl.store(o_ptr + o_at + column, out.to(o_ptr.dtype.element_ty))


def join_constants(
    pages: Pages, *, num_q_heads: int, gated: bool, tile: int, programs: int
) -> dict[str, int | bool]:
    """Constants of `join_rows`."""
    return {
        "ROWS": tile // (num_q_heads // pages.num_kv_heads),
        "Q_HEADS": num_q_heads,
        "QKV_WIDTH": 2 * (num_q_heads + pages.num_kv_heads) * pages.head_dim,
        "WIDTH": pages.head_dim,
        "GATED": gated,
        "MOST": triton.next_power_of_2(
            most_parts(num_kv_heads=pages.num_kv_heads, programs=programs)
        ),
    }


def parts_of(num_rows: int, *, rows: int, num_kv_heads: int, programs: int) -> int:
    """Parts of each block of `rows` rows of a launch such that it has no more than so many programs, or one."""
    return max(1, programs // (num_kv_heads * -(-num_rows // rows)))


def most_parts(*, num_kv_heads: int, programs: int) -> int:
    """Those of a launch of one block."""
    return max(1, programs // num_kv_heads)
