"""Attention of many rows over their sequences' pages: the Triton function of prefill.

A program has some rows of one sequence and all query heads that share a head of keys, one below the other as the rows
of its products, so that each key is read once for all of them. FP8 pages are read wide where they are
(`widen_pages.py`), else converted block by block.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.attention.prefill_parts import share_tokens
from firmtoken.runtime.kernels.attention.split_kv import LOG2_E
from firmtoken.runtime.kernels.attention.widen_pages import count_pages, exact, find_wide
from firmtoken.runtime.kernels.row_blocks import count_blocks, find_block

PART = tl.constexpr(32)
"""Columns of a head at a time where order is free."""
INTEGERS = ("num_sequences", "num_rows", "pages_stride", "parts")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def attend_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    wide_ptr,
    qkv_ptr,
    o_ptr,
    partial_ptr,
    totals_ptr,
    num_rows_ptr,
    first_rows_ptr,
    starts_ptr,
    pages_ptr,
    num_sequences,
    num_rows,
    pages_stride,
    parts,
    scale,
    FORMAT: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    GATED: tl.constexpr,
    SEQUENCES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
    WIDE_BLOCK: tl.constexpr,
    WIDE_STAGES: tl.constexpr,
    Q_AGAIN: tl.constexpr,
):
    """Program (h, i, p): kv head h and its GROUP query heads, TILE / GROUP rows of the i-th block, the longest first,
    and the p-th part of their tokens (`prefill_parts.py`).

    The same program writes zeros to padded rows among the i-th TILE / GROUP of all rows. BLOCK and PAGE divide one
    another.
    """
    ROWS: tl.constexpr = TILE // GROUP
    TOKEN: tl.constexpr = KV_HEADS * WIDTH
    Q_WIDTH: tl.constexpr = KV_HEADS * GROUP * WIDTH
    kv_head = tl.program_id(0)
    index = tl.num_programs(1) - 1 - tl.program_id(1)
    part = tl.program_id(2)
    within = tl.arange(0, TILE) // GROUP
    head = kv_head * GROUP + tl.arange(0, TILE) % GROUP
    if part == 0:
        row = index * ROWS + within
        padded = (row >= tl.load(num_rows_ptr)) & (row < num_rows) & (within < ROWS)
        _write_zeros(o_ptr + (row * Q_WIDTH + head * WIDTH)[:, None], padded[:, None], WIDTH)
    counts = count_blocks(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, ROWS, False)
    sequence, place = find_block(index, counts)
    here = sequence < num_sequences
    first = tl.load(first_rows_ptr + sequence, mask=here, other=0)
    begin = first + place * ROWS
    end = tl.minimum(tl.load(first_rows_ptr + sequence + 1, mask=here, other=0), begin + ROWS)
    start = tl.load(starts_ptr + sequence, mask=here, other=0) - first
    count, token, last = share_tokens(start + begin, start + end, part, parts)
    if here & (part < count):
        row = begin + within
        there = ((within < ROWS) & (row < end))[:, None]
        column = tl.arange(0, WIDTH)[None, :]
        at = (row * Q_WIDTH + head * WIDTH)[:, None]
        q = tl.load(q_ptr + at + column, mask=there, other=0.0)
        largest = tl.full((TILE,), float("-inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        out = tl.zeros((TILE, WIDTH), tl.float32)
        if WIDE:
            pages = count_pages(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, PAGE)
            before, room = find_wide(sequence, pages, SEQUENCES, WIDE)
            done = tl.minimum(room * PAGE // WIDE_BLOCK * WIDE_BLOCK, last)
            wide_at = wide_ptr + before.to(tl.int64) * (PAGE * TOKEN) + kv_head * WIDTH
            largest, total, out = _attend(
                q,
                largest,
                total,
                out,
                wide_at,
                wide_at + WIDE * PAGE * TOKEN,
                pages_ptr,
                start + row,
                start + begin,
                token,
                done,
                scale * LOG2_E,
                "plain",
                TOKEN,
                PAGE,
                False,
                WIDE_BLOCK,
                WIDE_STAGES,
            )
            token = tl.maximum(token, done)
            if Q_AGAIN:
                # Volatile, else it is the first one: kept for both loops, q takes shared memory twice.
                q = tl.load(q_ptr + at + column, mask=there, other=0.0, volatile=True)
        largest, total, out = _attend(
            q,
            largest,
            total,
            out,
            k_ptr + kv_head * WIDTH,
            v_ptr + kv_head * WIDTH,
            pages_ptr + sequence.to(tl.int64) * pages_stride,
            start + row,
            start + begin,
            token,
            last,
            scale * LOG2_E,
            FORMAT,
            TOKEN,
            PAGE,
            True,
            BLOCK,
            STAGES,
        )
        if count > 1:
            part_row = part * num_rows
            head_row = ((part_row + row) * (KV_HEADS * GROUP) + head)[:, None]
            partial_at = partial_ptr + part_row.to(tl.int64) * Q_WIDTH + at + column
            _write_part(partial_at, totals_ptr + head_row * 2, largest, total, out, there)
        else:
            _write_rows(o_ptr + at + column, out / total[:, None], there)
            if GATED:
                gate_at = (row * (2 * Q_WIDTH + 2 * TOKEN) + (2 * head + 1) * WIDTH)[:, None]
                _gate(o_ptr + at, qkv_ptr + gate_at, there, WIDTH)


@triton.jit
def _attend(
    q,
    largest,
    total,
    out,
    k_ptr,
    v_ptr,
    page_row_ptr,
    position,
    lowest,
    begin,
    end,
    factor,
    FORMAT: tl.constexpr,
    TOKEN: tl.constexpr,
    PAGE: tl.constexpr,
    PAGED: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Maximum, sum and fp32 [rows, width] after tokens `begin` to `end`, from those of the tokens before.

    Each row of q sees the tokens up to its position; `lowest` is the first row's. TOKEN: elements from one token to the
    next. PAGED: tokens lie in pages, else one after another. `begin` is a multiple of BLOCK, and so is `end`, or it is
    that of the rows.
    """
    column = tl.arange(0, q.shape[1])[None, :]
    in_block = tl.arange(0, BLOCK)
    for at in tl.range(begin, end, BLOCK, num_stages=STAGES):
        token = at + in_block
        inside = (token < end)[:, None]
        if not PAGED:
            block_at = at * TOKEN
            token_at = in_block[:, None] * TOKEN + column
        elif PAGE % BLOCK == 0:
            # One address for the block: offsets within it stay small.
            block_at = (tl.load(page_row_ptr + at // PAGE).to(tl.int64) * PAGE + at % PAGE) * TOKEN
            token_at = in_block[:, None] * TOKEN + column
        else:
            page = tl.load(page_row_ptr + token // PAGE, mask=token < end, other=0).to(tl.int64)
            block_at = 0
            token_at = ((page * PAGE + token % PAGE) * TOKEN)[:, None] + column
        k = tl.load(k_ptr + block_at + token_at, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(exact(k, q.dtype, FORMAT))) * factor
        if at + BLOCK > lowest + 1:
            scores = tl.where(token[None, :] <= position[:, None], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(weights, axis=1)
        v = tl.load(v_ptr + block_at + token_at, mask=inside, other=0.0)
        out = tl.dot(weights.to(q.dtype), exact(v, q.dtype, FORMAT), out * fade[:, None])
        largest = new_largest
    return largest, total, out


@triton.jit
def _write_part(partial_at, totals_at, largest, total, out, there):
    tl.store(totals_at, largest[:, None], mask=there)
    tl.store(totals_at + 1, total[:, None], mask=there)
    tl.store(partial_at, out, mask=there)


@triton.jit
def _write_rows(o_at, out, there):
    tl.store(o_at, out.to(o_at.dtype.element_ty), mask=there)


@triton.jit
def _gate(o_at, gate_at, there, WIDTH: tl.constexpr):
    """Heads as they lie in memory, as wide as transformers has them, times sigmoid of their gates, in parts.

    All of a head's columns at once would not fit into registers beside what the loop holds.
    """
    part = tl.arange(0, PART)[None, :]
    tl.debug_barrier()  # other lanes' stores
    for at in tl.range(0, WIDTH, PART):
        x = tl.load(o_at + at + part, mask=there, other=0.0).to(tl.float32)
        gate = tl.load(gate_at + at + part, mask=there, other=0.0).to(tl.float32)
        x *= tl.sigmoid(gate)
        tl.store(o_at + at + part, x.to(o_at.dtype.element_ty), mask=there)


@triton.jit
def _write_zeros(o_at, there, WIDTH: tl.constexpr):
    """Of heads, in parts."""
    part = tl.arange(0, PART)[None, :]
    zeros = tl.zeros((o_at.shape[0], PART), o_at.dtype.element_ty)
    for at in tl.range(0, WIDTH, PART):
        tl.store(o_at + at + part, zeros, mask=there)
