"""FP8 keys and values of a launch's sequences become bf16 once, for all programs of a prefill launch (in Triton).

Converting is what FP8 pages cost: a program converts each block of keys and values for its own few rows, and on 9.0
sends it through shared memory. A tile of a prompt has a hundred such programs. So pages are converted before, into a
space for WIDE of them: those of the launch's sequences one after another, each from its first page on. Pages
that find no room there stay as they are.

    wide     [2, WIDE * PAGE, Hkv, D]   bf16: keys, values
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

from dataclasses import dataclass

import triton
import triton.language as tl

from firmtoken.runtime.kernels.attention.split_kv import widen
from firmtoken.runtime.kernels.row_blocks import find_block

WIDEN_WARPS = 4
STEP = 4096
"""Codes that a program has under way: 32 bytes a lane."""
PAGE_INTEGERS = ("num_sequences", "pages_stride")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Those of a launch: what both functions that read them are compiled for."""

    format_name: str
    """As in `split_kv.py`."""
    num_kv_heads: int
    head_dim: int
    page_size: int
    sequences: int
    """At least those of the launch, a power of two."""
    wide: int
    """How many there is space for."""


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=PAGE_INTEGERS)
def widen_pages(
    k_ptr,
    v_ptr,
    wide_ptr,
    first_rows_ptr,
    starts_ptr,
    pages_ptr,
    num_sequences,
    pages_stride,
    FORMAT: tl.constexpr,
    TOKEN: tl.constexpr,
    PAGE: tl.constexpr,
    SEQUENCES: tl.constexpr,
    WIDE: tl.constexpr,
    STEP: tl.constexpr,
):
    """Program (i, half): the i-th of WIDE pages, keys or values. TOKEN: numbers of a token of a half."""
    index = tl.program_id(0)
    half = tl.program_id(1)
    counts = count_pages(first_rows_ptr, starts_ptr, num_sequences, SEQUENCES, PAGE)
    sequence, place = find_block(index, counts)
    if sequence < num_sequences:
        page = tl.load(pages_ptr + sequence.to(tl.int64) * pages_stride + place).to(tl.int64)
        codes_ptr = (v_ptr if half else k_ptr) + page * (PAGE * TOKEN)
        to_ptr = wide_ptr + (half * WIDE + index).to(tl.int64) * (PAGE * TOKEN)
        element = tl.arange(0, STEP)
        for at in tl.range(0, PAGE * TOKEN, STEP):
            there = at + element < PAGE * TOKEN
            codes = tl.load(codes_ptr + at + element, mask=there, other=0.0)
            tl.store(
                to_ptr + at + element, exact(codes, to_ptr.dtype.element_ty, FORMAT), mask=there
            )


@triton.jit
def exact(x, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """The numbers themselves, in bf16 for one: it holds every e4m3. FORMAT as in `split_kv.py`."""
    if FORMAT == "plain":
        return x
    numbers = widen(x, FORMAT).to(tl.float32)
    if FORMAT == "fp8_bits":
        numbers *= 256.0
    return numbers.to(dtype)


@triton.jit
def count_pages(
    first_rows_ptr, starts_ptr, num_sequences, SEQUENCES: tl.constexpr, PAGE: tl.constexpr
):
    """int32 [SEQUENCES]: pages that hold what a sequence's rows may see; none of a sequence without rows."""
    sequence = tl.arange(0, SEQUENCES)
    there = sequence < num_sequences
    first = tl.load(first_rows_ptr + sequence, mask=there, other=0)
    end = tl.load(first_rows_ptr + sequence + 1, mask=there, other=0)
    start = tl.load(starts_ptr + sequence, mask=there, other=0)
    return tl.where(end > first, (start + end - first + (PAGE - 1)) // PAGE, 0)


@triton.jit
def find_wide(sequence, counts, SEQUENCES: tl.constexpr, WIDE: tl.constexpr):
    """Pages of the sequences before this one, and how many of the WIDE they leave."""
    before = tl.sum(tl.where(tl.arange(0, SEQUENCES) < sequence, counts, 0), axis=0)
    return before, tl.maximum(WIDE - before, 0)


def widen_constants(pages: Pages) -> dict[str, int | str]:
    """Constants of `widen_pages`."""
    return {
        "FORMAT": pages.format_name,
        "TOKEN": pages.num_kv_heads * pages.head_dim,
        "PAGE": pages.page_size,
        "SEQUENCES": pages.sequences,
        "WIDE": pages.wide,
        "STEP": STEP,
    }
