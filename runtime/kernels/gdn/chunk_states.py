"""Chunks of the gated delta net, third launch: the states, chunk after chunk (Triton, no torch).

Columns of a head's state do not depend on one another, so a program has some columns of one head of one sequence. The
products that need no state are made before (`chunk_rows.py`), those that need no next state after (`chunk_heads.py`).
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.gdn.chunk_rows import CHUNK
from firmtoken.runtime.kernels.row_blocks import count_blocks

STATE_INTEGERS = ("num_sequences", "num_rows")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=STATE_INTEGERS)
def advance_states(
    u_ptr,
    conv_state_ptr,
    state_ptr,
    totals_ptr,
    keys_ptr,
    read_ptr,
    update_ptr,
    states_ptr,
    first_rows_ptr,
    starts_ptr,
    live_ptr,
    shadow_ptr,
    boundary_ptr,
    num_sequences,
    num_rows,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    SEQUENCES: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Program (b, h, s): the b-th COLUMNS columns of value head h of sequence s, and a share of its conv state.

    `update` becomes `new` of `chunk.py`. states [chunks, Hv, Dk, Dv] of u's type: the state before each chunk.
    """
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    first = tl.load(first_rows_ptr + sequence)
    end = tl.load(first_rows_ptr + sequence + 1)
    if end > first:
        VALUE_HEADS: tl.constexpr = KEY_HEADS * SHARE
        HEAD: tl.constexpr = KEY_DIM * VALUE_DIM
        DTYPE: tl.constexpr = u_ptr.dtype.element_ty
        live = tl.load(live_ptr + sequence).to(tl.int64)
        shadow = tl.load(shadow_ptr + sequence).to(tl.int64)
        boundary = tl.load(boundary_ptr + sequence)
        begin = first - tl.load(starts_ptr + sequence) % CHUNK
        counts = count_blocks(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, CHUNK, True)
        earlier = tl.arange(0, SEQUENCES) < sequence
        chunk = tl.sum(tl.where(earlier, counts, 0), axis=0)
        in_key = tl.arange(0, KEY_DIM)
        in_value = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        in_state = head * HEAD + in_key[:, None] * VALUE_DIM + in_value[None, :]
        state = tl.load(state_ptr + live * (VALUE_HEADS * HEAD) + in_state)
        for at in tl.range(begin, end, CHUNK, num_stages=STAGES):
            row = at + tl.arange(0, CHUNK)
            inside = (row >= first) & (row < end)
            at_key = row * (KEY_HEADS * KEY_DIM) + (head // SHARE) * KEY_DIM
            keys = tl.load(
                keys_ptr + at_key[None, :] + in_key[:, None], mask=inside[None, :], other=0.0
            )
            at_read = row * (VALUE_HEADS * KEY_DIM) + head * KEY_DIM
            read = tl.load(
                read_ptr + at_read[:, None] + in_key[None, :], mask=inside[:, None], other=0.0
            )
            at_update = row * (VALUE_HEADS * VALUE_DIM) + head * VALUE_DIM
            at_update = at_update[:, None] + in_value[None, :]
            update = tl.load(update_ptr + at_update, mask=inside[:, None], other=0.0)
            total = tl.load(totals_ptr + head * num_rows + row, mask=inside, other=0.0)
            before = state.to(DTYPE)
            tl.store(states_ptr + chunk.to(tl.int64) * (VALUE_HEADS * HEAD) + in_state, before)
            new = update.to(tl.float32) - tl.dot(read, before)
            tl.store(update_ptr + at_update, new.to(DTYPE), mask=inside[:, None])
            if (first + boundary > at) & (first + boundary <= at + CHUNK) & (boundary > 0):
                # Rows after the boundary have no part in it; those before saw nothing of them.
                edge = tl.sum(tl.where(row == first + boundary - 1, total, 0.0), axis=0)
                fade = tl.where(row < first + boundary, tl.exp(edge - total), 0.0)
                kept = tl.dot(keys, (new * fade[:, None]).to(DTYPE), state * tl.exp(edge))
                tl.store(state_ptr + shadow * (VALUE_HEADS * HEAD) + in_state, kept)
            # Sums of decays fall from row to row, and are 0 outside.
            last = tl.min(total, axis=0)
            faded = (new * tl.exp(last - total)[:, None]).to(DTYPE)
            state = tl.dot(keys, faded, state * tl.exp(last))
            chunk += 1
        tl.store(state_ptr + live * (VALUE_HEADS * HEAD) + in_state, state)

        CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
        PROGRAMS: tl.constexpr = VALUE_HEADS * (VALUE_DIM // COLUMNS)
        _move_windows(
            u_ptr,
            conv_state_ptr + live * (CHANNELS * (TAPS - 1)),
            conv_state_ptr + shadow * (CHANNELS * (TAPS - 1)),
            head * (VALUE_DIM // COLUMNS) + tl.program_id(0),
            first,
            end,
            boundary,
            CHANNELS,
            CHANNELS + VALUE_HEADS * VALUE_DIM + 2 * VALUE_HEADS,
            (CHANNELS + PROGRAMS - 1) // PROGRAMS,
            TAPS,
        )


@triton.jit
def _move_windows(
    u_ptr,
    live_ptr,
    shadow_ptr,
    share,
    first,
    end,
    boundary,
    CHANNELS: tl.constexpr,
    U_WIDTH: tl.constexpr,
    OWN: tl.constexpr,
    TAPS: tl.constexpr,
):
    """The share-th OWN channels of the convolution's state [CHANNELS, TAPS - 1], at the end and at the boundary."""
    own = tl.arange(0, triton.next_power_of_2(OWN))
    channel = share * OWN + own
    there = (own < OWN) & (channel < CHANNELS)
    at = channel * (TAPS - 1)
    ending = _window(u_ptr + channel, live_ptr + at, first, end, there, U_WIDTH, TAPS)
    edge = first + boundary
    bounded = _window(u_ptr + channel, live_ptr + at, first, edge, there, U_WIDTH, TAPS)
    # Several threads may hold a number: all have read it before one of them writes it.
    tl.debug_barrier()
    for tap in tl.static_range(TAPS - 1):
        tl.store(live_ptr + at + tap, ending[tap], mask=there)
        if boundary > 0:
            tl.store(shadow_ptr + at + tap, bounded[tap], mask=there)


@triton.jit
def _window(u_ptr, window_ptr, first, end, there, U_WIDTH: tl.constexpr, TAPS: tl.constexpr):
    """The last TAPS - 1 inputs before row `end` of some channels, those before row `first` from the window itself."""
    window = ()
    for tap in tl.static_range(TAPS - 1):
        row = end - (TAPS - 1) + tap
        newer = tl.load(u_ptr + row * U_WIDTH, mask=there & (row >= first), other=0.0)
        older = tl.load(
            window_ptr + (row - first + (TAPS - 1)), mask=there & (row < first), other=0.0
        )
        window += (tl.where(row >= first, newer.to(older.dtype), older),)
    return window
