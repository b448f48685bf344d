"""A token from a row of logits, without sorting them: the four Triton functions that `sample` launches.

A row is cut into chunks of CHUNK logits, a program each. Thresholds are found four bits at a time: a launch sums what
lies at each of the 16 next digits, the next launch adds the sums of all chunks and goes on below the digit where the
threshold lies. A logit's key is its fp32 bits, moved so that a larger logit has a larger key.

    top-k   8 launches over counts: the key of the k-th largest, and how many of its equals are kept
    top-p   8 launches over weights: the same for the shortest run that reaches p
    then    what each chunk keeps; and the one chunk, and the token in it, where the cumulative sum exceeds u times all

Weights are exp((logit - largest) / temperature) in steps of 2^-40, integers, so sums are exact in any order.
A row of a temperature below `MIN_TEMPERATURE` is arg-max and skips all between the first launch and the last.

    peaks   fp32 [S, chunks], ids int32 [S, chunks]     largest of each chunk (NaN above all) and its first id
    sums    int64 [2, S, chunks, 16]                    of this launch and of the one before
    marks   int64 [2, S, 4]                             prefix, what is sought below it, its top-k's key and equals
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.sample.weights import (
    kept_weight_of,
    key_of,
    logit_of,
    uniform,
    weight_of,
)

DIGITS = 8
"""Of four bits."""
MIN_TEMPERATURE = tl.constexpr(1e-5)
BINS = tl.constexpr(16)
MARKS = tl.constexpr(4)
SLICE = tl.constexpr(256)
"""Logits of a chunk that are put into bins at a time."""
INTEGERS = ("width", "stride", "num_chunks")


@triton.jit(do_not_specialize=INTEGERS)
def find_peaks(
    logits_ptr,
    peaks_ptr,
    ids_ptr,
    width,
    stride,
    num_chunks,
    CHUNK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (c, s): the largest logit of chunk c of row s, NaN above all, and the first id that has it."""
    if EARLY:
        start_next_after_last()
    row = tl.program_id(1)
    index = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(
        logits_ptr + row.to(tl.int64) * stride + index, mask=index < width, other=float("-inf")
    )
    x = x.to(tl.float32)
    is_nan = x != x
    largest = tl.max(tl.where(is_nan, float("inf"), x), axis=0)
    first = tl.min(tl.where((x == largest) & (index < width), index, width), axis=0)
    bad = tl.max(is_nan.to(tl.int32), axis=0) > 0
    at = row * num_chunks + tl.program_id(0)
    tl.store(peaks_ptr + at, tl.where(bad, float("nan"), largest))
    tl.store(ids_ptr + at, first)


@triton.jit(do_not_specialize=(*INTEGERS, "num_rows", "digit", "launch"))
def narrow(
    logits_ptr,
    peaks_ptr,
    sums_ptr,
    marks_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    width,
    stride,
    num_chunks,
    num_rows,
    digit,
    launch,
    WEIGHTS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (c, s): what chunk c of row s has at each of the 16 values of a digit, of counts or of WEIGHTS.

    `digit`: 0 is the highest four bits. `launch` counts these launches: its last bit says which half is written.
    """
    if EARLY:
        start_next_after_last()
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    largest = _largest(peaks_ptr, row, num_chunks, CHUNKS)
    counted = (top_k > 0) & (top_k < width)
    wanted = top_p < 1.0 if WEIGHTS else counted
    if wanted & (temperature >= MIN_TEMPERATURE) & (tl.abs(largest) < float("inf")):
        before = (1 - (launch & 1)) * num_rows + row
        now = (launch & 1) * num_rows + row
        prefix = tl.zeros((), tl.int64)
        rest = top_k.to(tl.int64)
        top_key = tl.zeros((), tl.int64)
        equals = tl.zeros((), tl.int64)
        goal = tl.zeros((), tl.int64)
        if digit > 0:
            if WEIGHTS and digit == 1:
                goal = _goal(sums_ptr, before, top_p, num_chunks, CHUNKS)
            prefix, rest = _advance(sums_ptr, marks_ptr, before, goal, num_chunks, CHUNKS)
            top_key = tl.load(marks_ptr + before * MARKS + 2)
            equals = tl.load(marks_ptr + before * MARKS + 3)
        elif WEIGHTS and counted:
            top_key, equals = _advance(sums_ptr, marks_ptr, before, goal, num_chunks, CHUNKS)
        if chunk == 0:
            _mark(marks_ptr, now, prefix, rest, top_key, equals)
        found = _sum_bins(
            logits_ptr + row.to(tl.int64) * stride, chunk, width, digit, prefix, top_key, largest, temperature,
            WEIGHTS, CHUNK,
        )  # fmt: skip
        if WEIGHTS and chunk == 0:
            # The k-th largest and its kept equals are in no chunk's sum: they are added once.
            alike = weight_of(logit_of(top_key), largest, temperature) * equals
            own = (tl.arange(0, BINS) == _digit(top_key, digit)) & (
                _above(top_key, digit) == prefix
            )
            found += tl.where(own, alike, 0)
        tl.store(sums_ptr + (now * num_chunks + chunk) * BINS + tl.arange(0, BINS), found)


@triton.jit
def _sum_bins(
    row_ptr,
    chunk,
    width,
    digit,
    prefix,
    top_key,
    largest,
    temperature,
    WEIGHTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """int64 [16]: counts, or weights above the top-k's key, of a chunk's logits below a prefix, by their next digit."""
    bins = tl.arange(0, BINS)
    sums = tl.zeros((SLICE, BINS), tl.int64)
    for first in range(0, CHUNK, SLICE):
        index = chunk * CHUNK + first + tl.arange(0, SLICE)
        there = index < width
        x = tl.load(row_ptr + index, mask=there, other=float("-inf")).to(tl.float32)
        key = key_of(x)
        amount = there.to(tl.int64)
        if WEIGHTS:
            amount = tl.where(there & (key > top_key), weight_of(x, largest, temperature), 0)
        amount = tl.where(_above(key, digit) == prefix, amount, 0)
        sums += tl.where(_digit(key, digit)[:, None] == bins[None, :], amount[:, None], 0)
    return tl.sum(sums, axis=0)


@triton.jit
def _digit(key, digit):
    """Four bits of a key; digit 0 is the highest."""
    return (key >> (28 - 4 * digit).to(tl.int64)) & 15


@triton.jit
def _above(key, digit):
    """What is above them."""
    return key >> (32 - 4 * digit).to(tl.int64)


@triton.jit(do_not_specialize=(*INTEGERS, "num_rows"))
def keep(
    logits_ptr,
    peaks_ptr,
    sums_ptr,
    marks_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    width,
    stride,
    num_chunks,
    num_rows,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (c, s): the weight above the thresholds in chunk c of row s, and how many equals of the lowest kept."""
    if EARLY:
        start_next_after_last()
    chunk = tl.program_id(0)
    row = tl.program_id(1)
    top_k = tl.load(top_k_ptr + row)
    temperature = tl.load(temperature_ptr + row)
    largest = _largest(peaks_ptr, row, num_chunks, CHUNKS)
    if (temperature >= MIN_TEMPERATURE) & (tl.abs(largest) < float("inf")):
        # The last narrowing launch wrote the second half.
        before = num_rows + row
        key_kept = tl.zeros((), tl.int64)
        equals = tl.zeros((), tl.int64)
        none = tl.zeros((), tl.int64)
        if tl.load(top_p_ptr + row) < 1.0:
            key_kept, rest = _advance(sums_ptr, marks_ptr, before, none, num_chunks, CHUNKS)
            alike = tl.maximum(weight_of(logit_of(key_kept), largest, temperature), 1)
            equals = (rest + alike - 1) // alike
        elif (top_k > 0) & (top_k < width):
            key_kept, equals = _advance(sums_ptr, marks_ptr, before, none, num_chunks, CHUNKS)
        if chunk == 0:
            _mark(marks_ptr, row, key_kept, equals, none, none)
        x, there = _logits(logits_ptr, row, chunk, width, stride, CHUNK)
        key = key_of(x)
        weight = kept_weight_of(x, largest, temperature, tl.load(min_p_ptr + row))
        above = tl.sum(tl.where(there & (key > key_kept), weight, 0), axis=0)
        alike = tl.sum((there & (key == key_kept)).to(tl.int64), axis=0)
        at = sums_ptr + (row * num_chunks + chunk) * BINS
        tl.store(at, above)
        tl.store(at + 1, alike)


@triton.jit(do_not_specialize=INTEGERS)
def pick(
    logits_ptr,
    peaks_ptr,
    ids_ptr,
    sums_ptr,
    marks_ptr,
    tokens_ptr,
    temperature_ptr,
    min_p_ptr,
    seed_ptr,
    position_ptr,
    width,
    stride,
    num_chunks,
    NO_TOKEN: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program s: the token of row s."""
    if EARLY:
        start_next_after_last()
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    peaks = tl.load(
        peaks_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf")
    )
    largest = _largest(peaks_ptr, row, num_chunks, CHUNKS)
    temperature = tl.load(temperature_ptr + row)
    token = tl.full((), NO_TOKEN, tl.int64)
    if tl.abs(largest) < float("inf"):
        if temperature < MIN_TEMPERATURE:
            first = tl.load(
                ids_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=width
            )
            token = tl.min(tl.where(peaks == largest, first, width), axis=0).to(tl.int64)
        else:
            min_p = tl.load(min_p_ptr + row)
            key_kept = tl.load(marks_ptr + row * MARKS)
            equals = tl.load(marks_ptr + row * MARKS + 1)
            alike = kept_weight_of(logit_of(key_kept), largest, temperature, min_p)
            at = sums_ptr + (row * num_chunks + chunk) * BINS
            above = tl.load(at, mask=chunk < num_chunks, other=0)
            count = tl.load(at + 1, mask=chunk < num_chunks, other=0)
            count_before = tl.cumsum(count, axis=0) - count
            kept = tl.minimum(tl.maximum(equals - count_before, 0), count)
            weight = above + tl.where(kept > 0, kept * alike, 0)
            passed = tl.cumsum(weight, axis=0)
            total = tl.sum(weight, axis=0)
            point = (
                uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row)).to(tl.float64) * total
            ).to(tl.int64)
            own = tl.sum((passed <= point).to(tl.int32), axis=0)
            is_own = chunk == own
            x, there = _logits(logits_ptr, row, own, width, stride, CHUNK)
            key = key_of(x)
            is_alike = there & (key == key_kept)
            rank = tl.cumsum(is_alike.to(tl.int64), axis=0) + tl.sum(
                tl.where(is_own, count_before, 0), axis=0
            )
            weights = kept_weight_of(x, largest, temperature, min_p)
            weights = tl.where(
                there & ((key > key_kept) | (is_alike & (rank <= equals))), weights, 0
            )
            start = tl.sum(tl.where(is_own, passed - weight, 0), axis=0)
            reached = start + tl.cumsum(weights, axis=0)
            token = own.to(tl.int64) * CHUNK + tl.sum((reached <= point).to(tl.int32), axis=0)
    tl.store(tokens_ptr + row, token)


@triton.jit
def _largest(peaks_ptr, row, num_chunks, CHUNKS: tl.constexpr):
    """The largest logit of a row; infinite where there is a NaN."""
    chunk = tl.arange(0, CHUNKS)
    peaks = tl.load(
        peaks_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=float("-inf")
    )
    return tl.max(tl.where(peaks != peaks, float("inf"), peaks), axis=0)


@triton.jit
def _logits(logits_ptr, row, chunk, width, stride, CHUNK: tl.constexpr):
    """fp32 [CHUNK] of a row, and which of them are there."""
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    there = index < width
    x = tl.load(logits_ptr + row.to(tl.int64) * stride + index, mask=there, other=float("-inf"))
    return x.to(tl.float32), there


@triton.jit
def _bins(sums_ptr, half_row, num_chunks, CHUNKS: tl.constexpr):
    """int64 [16]: the sums of all chunks."""
    chunk = tl.arange(0, CHUNKS)[:, None]
    at = sums_ptr + (half_row * num_chunks + chunk) * BINS + tl.arange(0, BINS)[None, :]
    return tl.sum(
        tl.load(at, mask=tl.broadcast_to(chunk < num_chunks, (CHUNKS, BINS)), other=0), axis=0
    )


@triton.jit
def _goal(sums_ptr, half_row, top_p, num_chunks, CHUNKS: tl.constexpr):
    """The weight that the kept ones must reach, from the weight of all."""
    total = tl.sum(_bins(sums_ptr, half_row, num_chunks, CHUNKS), axis=0)
    return tl.maximum(tl.ceil(total.to(tl.float64) * top_p.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _advance(sums_ptr, marks_ptr, half_row, goal, num_chunks, CHUNKS: tl.constexpr):
    """The prefix with one more digit, and what is sought below it; `goal`, if not 0, in place of what was sought."""
    bins = _bins(sums_ptr, half_row, num_chunks, CHUNKS)
    prefix = tl.load(marks_ptr + half_row * MARKS)
    rest = tl.load(marks_ptr + half_row * MARKS + 1)
    rest = tl.where(goal > 0, goal, rest)
    from_here = tl.sum(bins, axis=0) - tl.cumsum(bins, axis=0) + bins
    digit = tl.sum((from_here >= rest).to(tl.int64), axis=0) - 1
    above = tl.sum(tl.where(tl.arange(0, BINS) > digit, bins, 0), axis=0)
    return prefix * 16 + digit, rest - above


@triton.jit
def _mark(marks_ptr, half_row, prefix, rest, top_key, equals):
    at = marks_ptr + half_row * MARKS
    tl.store(at, prefix)
    tl.store(at + 1, rest)
    tl.store(at + 2, top_key)
    tl.store(at + 3, equals)
