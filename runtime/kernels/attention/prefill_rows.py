"""Attention of many rows over their sequences' pages: the Triton function of prefill.

A program has some rows of one sequence and all query heads that share a head of keys, one below the other as the rows
of its products, so that each key is read once for all of them. Formats of keys and values as in `split_kv.py`.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.attention.split_kv import LOG2_E, widen
from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.row_blocks import count_blocks, find_block, most_blocks

PART = tl.constexpr(32)
"""Columns of a head at a time where order is free."""
INTEGERS = ("num_sequences", "num_rows", "pages_stride")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def attend_rows(
    q_ptr,
    k_ptr,
    v_ptr,
    qkv_ptr,
    o_ptr,
    num_rows_ptr,
    first_rows_ptr,
    starts_ptr,
    pages_ptr,
    num_sequences,
    num_rows,
    pages_stride,
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
):
    """Program (h, i): kv head h and its GROUP query heads, TILE / GROUP rows of the i-th block; the longest come first.

    The same program writes zeros to padded rows among the i-th TILE / GROUP of all rows. BLOCK and PAGE divide one
    another.
    """
    ROWS: tl.constexpr = TILE // GROUP
    Q_WIDTH: tl.constexpr = KV_HEADS * GROUP * WIDTH
    QKV_WIDTH: tl.constexpr = 2 * Q_WIDTH + 2 * KV_HEADS * WIDTH
    kv_head = tl.program_id(0)
    index = tl.num_programs(1) - 1 - tl.program_id(1)
    within = tl.arange(0, TILE) // GROUP
    head = kv_head * GROUP + tl.arange(0, TILE) % GROUP
    real_rows = tl.load(num_rows_ptr)
    if (index + 1) * ROWS > real_rows:
        padded = index * ROWS + within
        unused = ((padded >= real_rows) & (padded < num_rows) & (within < ROWS))[:, None]
        _write_zeros(o_ptr + (padded * Q_WIDTH + head * WIDTH)[:, None], unused, WIDTH)
    counts = count_blocks(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, ROWS, False)
    sequence, place = find_block(index, counts)
    if sequence < num_sequences:
        first = tl.load(first_rows_ptr + sequence)
        begin = first + place * ROWS
        end = tl.minimum(tl.load(first_rows_ptr + sequence + 1), begin + ROWS)
        start = tl.load(starts_ptr + sequence) - first
        row = begin + within
        there = ((within < ROWS) & (row < end))[:, None]
        column = tl.arange(0, WIDTH)[None, :]
        at = (row * Q_WIDTH + head * WIDTH)[:, None]
        q = tl.load(q_ptr + at + column, mask=there, other=0.0)
        out = _attend(
            q,
            k_ptr + kv_head * WIDTH,
            v_ptr + kv_head * WIDTH,
            pages_ptr + sequence.to(tl.int64) * pages_stride,
            start + row,
            start + begin,
            start + end,
            scale,
            FORMAT,
            KV_HEADS * WIDTH,
            PAGE,
            BLOCK,
            STAGES,
        )
        tl.store(o_ptr + at + column, out.to(o_ptr.dtype.element_ty), mask=there)
        if GATED:
            gate_at = (row * QKV_WIDTH + (2 * head + 1) * WIDTH)[:, None]
            _gate(o_ptr + at, qkv_ptr + gate_at, there, WIDTH)


@triton.jit
def _attend(
    q,
    k_ptr,
    v_ptr,
    page_row_ptr,
    position,
    lowest,
    end,
    scale,
    FORMAT: tl.constexpr,
    TOKEN: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """fp32 [rows, width]: each row of q over the tokens up to its position; `lowest` is the first row's.

    TOKEN: elements from one token of a page to the next.
    """
    if FORMAT != "plain":
        q = q.to(tl.float16)
    column = tl.arange(0, q.shape[1])[None, :]
    in_block = tl.arange(0, BLOCK)
    SHIFT: tl.constexpr = 256.0 if FORMAT == "fp8_bits" else 1.0
    factor = scale * (LOG2_E * SHIFT)
    largest = tl.full((q.shape[0],), float("-inf"), tl.float32)
    total = tl.zeros((q.shape[0],), tl.float32)
    out = tl.zeros(q.shape, tl.float32)
    for at in tl.range(0, end, BLOCK, num_stages=STAGES):
        token = at + in_block
        inside = (token < end)[:, None]
        if PAGE % BLOCK == 0:
            # One address for the block: offsets within it stay small.
            block_at = (tl.load(page_row_ptr + at // PAGE).to(tl.int64) * PAGE + at % PAGE) * TOKEN
            token_at = in_block[:, None] * TOKEN + column
        else:
            page = tl.load(page_row_ptr + token // PAGE, mask=token < end, other=0).to(tl.int64)
            block_at = 0
            token_at = ((page * PAGE + token % PAGE) * TOKEN)[:, None] + column
        k = widen(tl.load(k_ptr + block_at + token_at, mask=inside, other=0.0), FORMAT)
        scores = tl.dot(q, tl.trans(k)) * factor
        if at + BLOCK > lowest + 1:
            scores = tl.where(token[None, :] <= position[:, None], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_largest[:, None])
        fade = tl.exp2(largest - new_largest)
        total = total * fade + tl.sum(weights, axis=1)
        v = widen(tl.load(v_ptr + block_at + token_at, mask=inside, other=0.0), FORMAT)
        out = tl.dot(weights.to(v.dtype), v, out * fade[:, None])
        largest = new_largest
    return out * (SHIFT / total)[:, None]


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


def prefill_constants(
    *,
    format_name: str,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    gated: bool,
    sequences: int,
    tile: int,
    block: int,
    stages: int,
) -> dict[str, int | str | bool]:
    """Constants of `attend_rows`."""
    return {
        "FORMAT": format_name,
        "KV_HEADS": num_kv_heads,
        "GROUP": num_q_heads // num_kv_heads,
        "WIDTH": head_dim,
        "PAGE": page_size,
        "GATED": gated,
        "SEQUENCES": sequences,
        "TILE": tile,
        "BLOCK": block,
        "STAGES": stages,
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
    fp8_units: int,
    sequences: int,
    tile: int,
    block: int,
    warps: int,
    stages: int,
) -> tuple[Build, ...]:
    """The one form; `scale` is an argument."""
    coded = "fp8" if fp8_units else "fp8_bits"
    format_name = coded if launch.format == "fp8" else "plain"
    kv = {"plain": "*bf16", "fp8": "*fp8e4nv", "fp8_bits": "*u8"}[format_name]
    rows = tile // (num_q_heads // num_kv_heads)
    return (
        Build(
            name="rows",
            function=attend_rows,
            arguments={
                "q_ptr": "*bf16",
                "k_ptr": kv,
                "v_ptr": kv,
                **dict.fromkeys(("qkv_ptr", "o_ptr"), "*bf16"),
                **dict.fromkeys(("num_rows_ptr", "first_rows_ptr", "starts_ptr"), "*i32"),
                "pages_ptr": "*i32",
                **dict.fromkeys(INTEGERS, "i32"),
                "scale": "fp32",
            },
            constants=prefill_constants(
                format_name=format_name,
                num_q_heads=num_q_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                page_size=page_size,
                gated=bool(gated),
                sequences=sequences,
                tile=tile,
                block=block,
                stages=stages,
            ),
            num_warps=warps,
            grid=(num_kv_heads, most_blocks(launch.num_rows, sequences, rows, aligned=False)),
        ),
    )
