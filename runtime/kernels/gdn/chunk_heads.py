"""Chunks of the gated delta net, fourth launch: what rows read of the states, normed and gated (Triton, no torch)."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.gdn.chunk_rows import CHUNK
from firmtoken.runtime.kernels.row_blocks import count_blocks, find_block

READ_INTEGERS = ("num_sequences", "num_rows")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=READ_INTEGERS)
def read_chunks(
    u_ptr,
    o_ptr,
    norm_ptr,
    totals_ptr,
    queries_ptr,
    keys_ptr,
    new_ptr,
    states_ptr,
    num_rows_ptr,
    first_rows_ptr,
    starts_ptr,
    num_sequences,
    num_rows,
    eps,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    """Program (h, c): value head h of chunk c; and zeros for that head in padded rows among the c-th CHUNK rows."""
    VALUE_HEADS: tl.constexpr = KEY_HEADS * SHARE
    VALUE_COLUMNS: tl.constexpr = VALUE_HEADS * VALUE_DIM
    Z: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_COLUMNS
    DTYPE: tl.constexpr = u_ptr.dtype.element_ty
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    in_key = tl.arange(0, KEY_DIM)
    in_value = tl.arange(0, VALUE_DIM)
    column = head * VALUE_DIM + in_value[None, :]
    padded = chunk * CHUNK + tl.arange(0, CHUNK)
    unused = (padded >= tl.load(num_rows_ptr)) & (padded < num_rows)
    zeros = tl.zeros((CHUNK, VALUE_DIM), o_ptr.dtype.element_ty)
    tl.store(o_ptr + padded[:, None] * VALUE_COLUMNS + column, zeros, mask=unused[:, None])
    counts = count_blocks(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, CHUNK, True)
    sequence, place = find_block(chunk, counts)
    if sequence < num_sequences:
        first = tl.load(first_rows_ptr + sequence)
        end = tl.load(first_rows_ptr + sequence + 1)
        row = first - tl.load(starts_ptr + sequence) % CHUNK + place * CHUNK + tl.arange(0, CHUNK)
        inside = (row >= first) & (row < end)
        at_key = row * (KEY_HEADS * KEY_DIM) + (head // SHARE) * KEY_DIM
        query = tl.load(
            queries_ptr + at_key[:, None] + in_key[None, :], mask=inside[:, None], other=0.0
        )
        key = tl.load(keys_ptr + at_key[None, :] + in_key[:, None], mask=inside[None, :], other=0.0)
        at_state = (chunk.to(tl.int64) * VALUE_HEADS + head) * (KEY_DIM * VALUE_DIM)
        state = tl.load(states_ptr + at_state + in_key[:, None] * VALUE_DIM + in_value[None, :])
        at_new = row[:, None] * VALUE_COLUMNS + column
        new = tl.load(new_ptr + at_new, mask=inside[:, None], other=0.0)
        total = tl.load(totals_ptr + head * num_rows + row, mask=inside, other=0.0)
        seen = (tl.arange(0, CHUNK)[:, None] >= tl.arange(0, CHUNK)[None, :]) & inside[:, None]
        between = tl.exp(tl.where(seen, total[:, None] - total[None, :], float("-inf")))
        scores = (tl.dot(query, key) * between).to(DTYPE)
        out = tl.dot(query, state) * tl.exp(total)[:, None]
        out = tl.dot(scores, new, out)
        gate_at = row[:, None] * (Z + VALUE_COLUMNS + 2 * VALUE_HEADS) + Z + column
        gate = tl.load(u_ptr + gate_at, mask=inside[:, None], other=0.0).to(tl.float32)
        norm = tl.load(norm_ptr + in_value).to(tl.float32)[None, :]
        scale = tl.rsqrt(tl.sum(out * out, axis=1) / VALUE_DIM + eps)[:, None]
        out = out * scale * norm * gate * tl.sigmoid(gate)
        tl.store(
            o_ptr + row[:, None] * VALUE_COLUMNS + column,
            out.to(o_ptr.dtype.element_ty),
            mask=inside[:, None],
        )
