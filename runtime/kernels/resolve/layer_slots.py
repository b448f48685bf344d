"""Where each expert of a layer is or will be, found by one program (Triton, no torch): `resolve`'s contract."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch

INTEGERS = ("num_ids", "wave", "first", "count")
IDS = tl.constexpr(1024)
"""Ids of routed experts that are read at a time."""


@triton.jit(do_not_specialize=INTEGERS)
def resolve_layer(
    table_ptr,
    ids_ptr,
    map_ptr,
    miss_ptr,
    num_ids,
    wave,
    first,
    count,
    EXPERTS: tl.constexpr,
    ROUTED: tl.constexpr,
):
    """One program. table, map int32 [EXPERTS], miss int32 [1 + 2 EXPERTS], ids int32 [num_ids] where ROUTED.

    Missing experts get slots from `first` on, `count` of them a wave; `wave` 0 has what the table knows too.
    """
    expert = tl.arange(0, triton.next_power_of_2(EXPERTS))
    inside = expert < EXPERTS
    if ROUTED:
        # The map is the scratch in which the routed ones are marked.
        tl.store(map_ptr + expert, 0, mask=inside)
        tl.debug_barrier()
        for start in range(0, num_ids, IDS):
            at = start + tl.arange(0, IDS)
            ids = tl.load(ids_ptr + at, mask=at < num_ids, other=-1)
            tl.store(map_ptr + ids, 1, mask=ids >= 0)
        tl.debug_barrier()
        routed = tl.load(map_ptr + expert, mask=inside, other=0)
        tl.debug_barrier()
    else:
        routed = inside.to(tl.int32)
    known = tl.load(table_ptr + expert, mask=inside, other=0)
    absent = (known < 0) & (routed > 0)
    number = tl.cumsum(absent.to(tl.int32), axis=0) - 1 - wave * count
    mine = absent & (number >= 0) & (number < count)
    slot = first + number
    others = tl.where(wave == 0, known, -1)
    tl.store(map_ptr + expert, tl.where(mine, slot, others), mask=inside)
    tl.store(miss_ptr, tl.sum(mine.to(tl.int32), axis=0))
    tl.store(miss_ptr + 1 + 2 * number, expert, mask=mine)
    tl.store(miss_ptr + 2 + 2 * number, slot, mask=mine)


def resolve_builds(launch: Launch, *, warps: int) -> tuple[Build, ...]:
    """The one form that these operands ask for."""
    routed = "ids" in launch.operands
    pointers = dict.fromkeys(("table_ptr", "ids_ptr", "map_ptr", "miss_ptr"), "*i32")
    return (
        Build(
            name="routed" if routed else "all",
            function=resolve_layer,
            arguments={**pointers, **dict.fromkeys(INTEGERS, "i32")},
            constants={"EXPERTS": (launch.columns("miss") - 1) // 2, "ROUTED": routed},
            num_warps=warps,
            grid=(1,),
        ),
    )
