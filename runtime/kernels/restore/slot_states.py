"""States of one layer from snapshots, or zeros, to state slots: the Triton function that `restore` launches.

Snapshots lie in pinned memory, which the card reads over its link. States are moved as words of four bytes.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch


@triton.jit
def restore_slots(
    snaps_ptr,
    conv_state_ptr,
    recurrent_state_ptr,
    moves_ptr,
    CONV: tl.constexpr,
    RECURRENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (b, i): the b-th BLOCK words of both states of move i (snapshot or -1, live slot or -1, shadow slot).

    All pointers int32. CONV, RECURRENT: words of a state. A move without a live slot is none.
    """
    move_ptr = moves_ptr + tl.program_id(1) * 3
    snapshot = tl.load(move_ptr).to(tl.int64)
    live = tl.load(move_ptr + 1).to(tl.int64)
    shadow = tl.load(move_ptr + 2).to(tl.int64)
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_conv = (word < CONV) & (live >= 0)
    is_recurrent = (word >= CONV) & (word < CONV + RECURRENT) & (live >= 0)
    kept = (is_conv | is_recurrent) & (snapshot >= 0)
    state = tl.load(snaps_ptr + snapshot * (CONV + RECURRENT) + word, mask=kept, other=0)
    tl.store(conv_state_ptr + live * CONV + word, state, mask=is_conv)
    tl.store(conv_state_ptr + shadow * CONV + word, state, mask=is_conv)
    recurrent_ptr = recurrent_state_ptr + word - CONV
    tl.store(recurrent_ptr + live * RECURRENT, state, mask=is_recurrent)
    tl.store(recurrent_ptr + shadow * RECURRENT, state, mask=is_recurrent)


def restore_builds(
    launch: Launch, *, conv_words: int, recurrent_words: int, block: int, warps: int
) -> tuple[Build, ...]:
    """The one form. A move for each sequence: no more than rows."""
    return (
        Build(
            name="states",
            function=restore_slots,
            arguments=dict.fromkeys(
                ("snaps_ptr", "conv_state_ptr", "recurrent_state_ptr", "moves_ptr"), "*i32"
            ),
            constants={"CONV": conv_words, "RECURRENT": recurrent_words, "BLOCK": block},
            num_warps=warps,
            grid=(-(-(conv_words + recurrent_words) // block), launch.num_rows),
        ),
    )
