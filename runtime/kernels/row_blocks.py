"""Which rows of which sequence a program of a prefill launch works on, found on the device (functions in Triton).

The rows of each sequence are cut into blocks; blocks of all sequences are numbered through. A grid has as many programs
as there can be blocks, `most_blocks`; what is left of it finds no sequence.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def count_blocks(
    first_rows_ptr,
    starts_ptr,
    num_sequences,
    SEQUENCES: tl.constexpr,
    BLOCK: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """int32 [SEQUENCES]: blocks of each sequence. ALIGNED: they end where a position is a multiple of BLOCK."""
    sequence = tl.arange(0, SEQUENCES)
    there = sequence < num_sequences
    first = tl.load(first_rows_ptr + sequence, mask=there, other=0)
    end = tl.load(first_rows_ptr + sequence + 1, mask=there, other=0)
    lead = 0
    if ALIGNED:
        lead = tl.load(starts_ptr + sequence, mask=there, other=0) % BLOCK
    return tl.where(end > first, (lead + end - first + (BLOCK - 1)) // BLOCK, 0)


@triton.jit
def find_block(index, counts):
    """The sequence of the index-th block (at least as many as there are if there is no such block), its place in it."""
    ends = tl.cumsum(counts, axis=0)
    passed = ends <= index
    place = index - tl.max(tl.where(passed, ends, 0), axis=0)
    return tl.sum(passed.to(tl.int32), axis=0), place


def most_blocks(num_rows: int, num_sequences: int, block: int, *, aligned: bool) -> int:
    """Blocks that these rows can have, however they are shared out: each sequence may begin and end within one."""
    return -(-num_rows // block) + num_sequences * (2 if aligned else 1)
