"""Listed experts from pinned host memory to their slots (Triton, no torch): the list is read where it was made.

A few programs suffice for the link, and leave the rest of the card to others.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last

WORD = 4
"""Bytes of a word; four of them are loaded at once."""


@triton.jit
def fetch_listed(
    miss_ptr,
    bank_ptr,
    slots_ptr,
    WORDS: tl.constexpr,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """slots[s] = bank[e] for the pairs (e, s) that `miss` int32 [1 + 2 E] lists after their number.

    bank and slots: int32, rows of WORDS; a program takes every PROGRAMS-th BLOCK words of the whole list.
    EARLY: `early_start.py`.
    """
    if EARLY:
        start_next_after_last()
    blocks: tl.constexpr = (WORDS + BLOCK - 1) // BLOCK
    total = tl.load(miss_ptr) * blocks
    for index in range(tl.program_id(0), total, PROGRAMS):
        pair_ptr = miss_ptr + 1 + index // blocks * 2
        expert = tl.load(pair_ptr).to(tl.int64)
        slot = tl.load(pair_ptr + 1).to(tl.int64)
        word = index % blocks * BLOCK + tl.arange(0, BLOCK)
        inside = word < WORDS
        found = tl.load(
            bank_ptr + expert * WORDS + word, mask=inside, eviction_policy="evict_first"
        )
        tl.store(slots_ptr + slot * WORDS + word, found, mask=inside)


def fetch_builds(
    launch: Launch, *, block: int, programs: int, warps: int, early: int
) -> tuple[Build, ...]:
    """The one form."""
    return (
        Build(
            name="slots",
            function=fetch_listed,
            arguments=dict.fromkeys(("miss_ptr", "bank_ptr", "slots_ptr"), "*i32"),
            constants={
                "WORDS": launch.columns("bank") // WORD,
                "BLOCK": block,
                "PROGRAMS": programs,
                "EARLY": bool(early),
            },
            num_warps=warps,
            grid=(programs,),
        ),
    )
