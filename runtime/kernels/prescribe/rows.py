"""Experts by position: the Triton function that `prescribe` launches."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch

POINTERS = ("ids_ptr", "routes_ptr", "positions_ptr", "sequences_ptr")
INTEGERS = ("positions", "chosen", "ids_stride", "conversation")


@triton.jit(do_not_specialize=INTEGERS)
def prescribe_rows(
    ids_ptr,
    routes_ptr,
    positions_ptr,
    sequences_ptr,
    positions,
    chosen,
    ids_stride,
    conversation,
    CHOSEN: tl.constexpr,
):
    """Program t: row t, unless it is padding (sequence -1); CHOSEN is k rounded up to a power of two."""
    row = tl.program_id(0)
    sequence = tl.load(sequences_ptr + row)
    at = (tl.load(positions_ptr + row) + sequence * conversation) % positions
    column = tl.arange(0, CHOSEN)
    mask = (column < chosen) & (sequence >= 0)
    expert = tl.load(routes_ptr + at * chosen + column, mask=mask)
    tl.store(ids_ptr + row.to(tl.int64) * ids_stride + column, expert, mask=mask)


def prescribe_builds(launch: Launch, *, conversation: int) -> tuple[Build, ...]:
    """The one form."""
    arguments = {**dict.fromkeys(POINTERS, "*i32"), **dict.fromkeys(INTEGERS, "i32")}
    return (
        Build(
            name="rows",
            function=prescribe_rows,
            arguments=arguments,
            constants={"CHOSEN": triton.next_power_of_2(launch.columns("ids"))},
            num_warps=1,
            grid=(launch.num_rows,),
        ),
    )
