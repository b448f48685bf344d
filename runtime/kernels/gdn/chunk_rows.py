"""Chunks of the gated delta net, first two of four launches: all that does not depend on the state (Triton, no torch).

The algebra is that of `chunk.py`. A chunk ends where a position is a multiple of CHUNK, so that a run which was cut
there computes the same sums; rows of a chunk that are another sequence's, or nobody's, are rows of zeros.

Products are of 16-bit numbers with fp32 sums. (I + A)^-1 has no entry above 1, because it consists of products of
contractions; fp16 holds it to 11 bits.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.gdn.head_steps import UNIT_EPS, softplus
from firmtoken.runtime.kernels.row_blocks import count_blocks, find_block

CHUNK = tl.constexpr(64)
DOUBLINGS = tl.constexpr(5)
"""Blocks of 2 rows become one of CHUNK."""
CONVOLVE_INTEGERS = ("num_sequences",)
PREPARE_INTEGERS = ("num_sequences", "num_rows")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=CONVOLVE_INTEGERS)
def convolve_chunks(
    u_ptr,
    conv_state_ptr,
    conv_ptr,
    queries_ptr,
    keys_ptr,
    values_ptr,
    first_rows_ptr,
    starts_ptr,
    live_ptr,
    num_sequences,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    """Program (h, c): the h-th of the heads of q, k and v in chunk c.

    queries (of unit length, times Dk^-0.5) and keys (of unit length) [T, Hk*Dk], values [T, Hv*Dv], of u's type.
    """
    head = tl.program_id(0)
    counts = count_blocks(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, CHUNK, True)
    sequence, place = find_block(tl.program_id(1), counts)
    if sequence < num_sequences:
        KEY_COLUMNS: tl.constexpr = KEY_HEADS * KEY_DIM
        VALUE_COLUMNS: tl.constexpr = KEY_HEADS * SHARE * VALUE_DIM
        CHANNELS: tl.constexpr = 2 * KEY_COLUMNS + VALUE_COLUMNS
        U_WIDTH: tl.constexpr = CHANNELS + VALUE_COLUMNS + 2 * KEY_HEADS * SHARE
        DTYPE: tl.constexpr = u_ptr.dtype.element_ty
        first = tl.load(first_rows_ptr + sequence)
        end = tl.load(first_rows_ptr + sequence + 1)
        row = first - tl.load(starts_ptr + sequence) % CHUNK + place * CHUNK + tl.arange(0, CHUNK)
        inside = (row >= first) & (row < end)
        window_ptr = conv_state_ptr + tl.load(live_ptr + sequence).to(tl.int64) * (
            CHANNELS * (TAPS - 1)
        )
        if head < 2 * KEY_HEADS:
            channel = head * KEY_DIM + tl.arange(0, KEY_DIM)
            x = _convolve(u_ptr, window_ptr, conv_ptr, row, inside, first, channel, U_WIDTH, TAPS)
            length = tl.rsqrt(tl.sum(x * x, axis=1) + UNIT_EPS)
            if head < KEY_HEADS:
                out_ptr = queries_ptr + channel
                length *= KEY_DIM**-0.5
            else:
                out_ptr = keys_ptr + channel - KEY_COLUMNS
            at = out_ptr[None, :] + row[:, None] * KEY_COLUMNS
            tl.store(at, (x * length[:, None]).to(DTYPE), mask=inside[:, None])
        else:
            column = (head - 2 * KEY_HEADS) * VALUE_DIM + tl.arange(0, VALUE_DIM)
            channel = 2 * KEY_COLUMNS + column
            x = _convolve(u_ptr, window_ptr, conv_ptr, row, inside, first, channel, U_WIDTH, TAPS)
            at = values_ptr + row[:, None] * VALUE_COLUMNS + column[None, :]
            tl.store(at, x.to(DTYPE), mask=inside[:, None])


@triton.jit
def _convolve(
    u_ptr,
    window_ptr,
    conv_ptr,
    row,
    inside,
    first,
    channel,
    U_WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
):
    """fp32 [rows, channels]: silu of the convolution, zeros outside; rows before `first` are in the window."""
    mixed = tl.zeros((row.shape[0], channel.shape[0]), tl.float32)
    for tap in tl.static_range(TAPS):
        past = row - (TAPS - 1 - tap)
        at = past[:, None] * U_WIDTH + channel[None, :]
        x = tl.load(u_ptr + at, mask=(inside & (past >= first))[:, None], other=0.0)
        mixed += x.to(tl.float32) * tl.load(conv_ptr + channel * TAPS + tap).to(tl.float32)[None, :]
    if tl.min(row, axis=0) < first + TAPS - 1:
        for reached in tl.static_range(TAPS - 1):
            older = tl.zeros((channel.shape[0],), tl.float32)
            for tap in tl.static_range(TAPS - 1 - reached):
                kept = tl.load(window_ptr + channel * (TAPS - 1) + reached + tap).to(tl.float32)
                older += kept * tl.load(conv_ptr + channel * TAPS + tap).to(tl.float32)
            reaching = inside & (row == first + reached)
            mixed += tl.where(reaching[:, None], older[None, :], 0.0)
    return mixed * tl.sigmoid(mixed)


@triton.jit(do_not_specialize=PREPARE_INTEGERS)
def prepare_chunks(
    u_ptr,
    a_log_ptr,
    dt_bias_ptr,
    keys_ptr,
    values_ptr,
    totals_ptr,
    read_ptr,
    first_rows_ptr,
    starts_ptr,
    num_sequences,
    num_rows,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SEQUENCES: tl.constexpr,
):
    """Program (h, c): value head h of chunk c.

    totals fp32 [Hv, T]: running sums of g. `values` become `update` of `chunk.py`; read [T, Hv*Dk] is what is there.
    """
    head = tl.program_id(0)
    counts = count_blocks(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, CHUNK, True)
    sequence, place = find_block(tl.program_id(1), counts)
    if sequence < num_sequences:
        KEY_COLUMNS: tl.constexpr = KEY_HEADS * KEY_DIM
        VALUE_HEADS: tl.constexpr = KEY_HEADS * SHARE
        B: tl.constexpr = 2 * KEY_COLUMNS + 2 * VALUE_HEADS * VALUE_DIM
        DTYPE: tl.constexpr = u_ptr.dtype.element_ty
        first = tl.load(first_rows_ptr + sequence)
        end = tl.load(first_rows_ptr + sequence + 1)
        row = first - tl.load(starts_ptr + sequence) % CHUNK + place * CHUNK + tl.arange(0, CHUNK)
        inside = (row >= first) & (row < end)
        in_key = tl.arange(0, KEY_DIM)
        at_key = keys_ptr + row[:, None] * KEY_COLUMNS + (head // SHARE) * KEY_DIM + in_key[None, :]
        key = tl.load(at_key, mask=inside[:, None], other=0.0)
        in_value = head * VALUE_DIM + tl.arange(0, VALUE_DIM)
        at_value = values_ptr + row[:, None] * (VALUE_HEADS * VALUE_DIM) + in_value[None, :]
        value = tl.load(at_value, mask=inside[:, None], other=0.0)

        gates_ptr = u_ptr + row * (B + 2 * VALUE_HEADS) + B + head
        strength = tl.sigmoid(tl.load(gates_ptr, mask=inside, other=0.0).to(tl.float32))
        strength = tl.where(inside, strength, 0.0)
        rate = tl.load(gates_ptr + VALUE_HEADS, mask=inside, other=0.0).to(tl.float32)
        rate = softplus(rate + tl.load(dt_bias_ptr + head).to(tl.float32))
        decay = -tl.exp(tl.load(a_log_ptr + head).to(tl.float32)) * rate
        total = tl.cumsum(tl.where(inside, decay, 0.0), axis=0)
        tl.store(totals_ptr + head * num_rows + row, total, mask=inside)

        below = tl.arange(0, CHUNK)[:, None] > tl.arange(0, CHUNK)[None, :]
        between = tl.exp(tl.where(below, total[:, None] - total[None, :], float("-inf")))
        products = tl.dot(key, tl.trans(key)) * between * strength[:, None]
        solved = invert(products, DTYPE)
        # Both factors of a row go onto the columns of the inverse, which is smaller than keys and values.
        update = tl.dot((solved * strength[None, :]).to(DTYPE), value)
        tl.store(at_value, update.to(DTYPE), mask=inside[:, None])
        read = tl.dot((solved * (strength * tl.exp(total))[None, :]).to(DTYPE), key)
        at_read = read_ptr + row[:, None] * (VALUE_HEADS * KEY_DIM) + head * KEY_DIM
        tl.store(at_read + in_key[None, :], read.to(DTYPE), mask=inside[:, None])


@triton.jit
def invert(below, DTYPE: tl.constexpr):
    """(I + below)^-1 of a strictly lower fp32 [CHUNK, CHUNK], from inverses of blocks of 2 rows, then 4, 8 and so on.

    [[P, 0], [B, Q]]^-1 = [[P', 0], [-Q' B P', Q']], for all pairs of blocks at once.
    """
    PRODUCT: tl.constexpr = DTYPE if tl.float32 == DTYPE else tl.float16
    row = tl.arange(0, CHUNK)[:, None]
    column = tl.arange(0, CHUNK)[None, :]
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row >> 1 == column >> 1, below, 0.0)
    for doubling in tl.static_range(1, DOUBLINGS + 1):
        paired = row >> (doubling + 1) == column >> (doubling + 1)
        paired &= row >> doubling != column >> doubling
        short = inverse.to(PRODUCT)
        left = tl.dot(short, tl.where(paired, below, 0.0).to(PRODUCT))
        inverse -= tl.dot(left.to(PRODUCT), short)
    return inverse
