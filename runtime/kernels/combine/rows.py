"""The weighted sum of a row's experts, in a fixed order (Triton, no torch)."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last


@triton.jit
def combine_row(
    rows_ptr,
    wts_ptr,
    hid_ptr,
    s_ptr,
    HIDDEN: tl.constexpr,
    PAIRS: tl.constexpr,
    SHARED: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """hid[T, HIDDEN] += sum over pairs of wts[T, PAIRS] * rows[T*PAIRS, HIDDEN], + s[T, HIDDEN] where SHARED.

    Any float types. Program (row, COLUMNS of it). EARLY (`early_start.py`): wts and hid must be older than the launch
    before.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < HIDDEN
    total = tl.load(hid_ptr + row * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        start_next_after_last()
    for place in tl.static_range(PAIRS):
        pair = row * PAIRS + place
        part = tl.load(rows_ptr + pair * HIDDEN + column, mask=inside, other=0.0)
        total += tl.load(wts_ptr + pair) * part.to(tl.float32)
    if SHARED:
        total += tl.load(s_ptr + row * HIDDEN + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(hid_ptr + row * HIDDEN + column, total.to(hid_ptr.dtype.element_ty), mask=inside)


def combine_builds(launch: Launch, *, columns: int, warps: int, early: int) -> tuple[Build, ...]:
    """The one form that these operands ask for."""
    shared = "s" in launch.operands
    hidden = launch.columns("hid")
    pointers = {f"{name}_ptr": launch.pointer(name) for name in ("rows", "wts", "hid")}
    return (
        Build(
            name="with the shared expert" if shared else "experts",
            function=combine_row,
            arguments={**pointers, "s_ptr": launch.pointer("s" if shared else "hid")},
            constants={
                "HIDDEN": hidden,
                "PAIRS": launch.columns("wts"),
                "SHARED": shared,
                "COLUMNS": columns,
                "EARLY": bool(early),
            },
            num_warps=warps,
            grid=(launch.num_rows, -(-hidden // columns)),
        ),
    )
