"""The weighted sum of experts for many rows, in a fixed order, a block of columns at a time (Triton, no torch).

A program has several rows, so that enough loads are under way where a row's share of the block is short.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("num_rows", "block"))
def combine_block(
    rows_ptr,
    wts_ptr,
    hid_ptr,
    s_ptr,
    num_rows,
    block,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    PAIRS: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """hid += sum over pairs of wts[T, PAIRS] * rows[T*PAIRS, BLOCK], + s where SHARED, in columns block * BLOCK on.

    hid, s [T, HIDDEN]; any float types. Program (ROWS rows, COLUMNS of the block).
    """
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = (row < num_rows) & (column < BLOCK)
    at = row * HIDDEN + block * BLOCK + column
    total = tl.load(hid_ptr + at, mask=inside, other=0.0).to(tl.float32)
    for place in tl.static_range(PAIRS):
        pair = row * PAIRS + place
        weight = tl.load(wts_ptr + pair, mask=row < num_rows, other=0.0)
        part = tl.load(rows_ptr + pair * BLOCK + column, mask=inside, other=0.0)
        total += weight * part.to(tl.float32)
    if SHARED:
        total += tl.load(s_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(hid_ptr + at, total.to(hid_ptr.dtype.element_ty), mask=inside)


def combine_builds(
    launch: Launch, *, rows_at_once: int, columns: int, warps: int
) -> tuple[Build, ...]:
    """The one form that these operands ask for."""
    shared = "s" in launch.operands
    block = launch.columns("rows")
    pointers = {f"{name}_ptr": launch.pointer(name) for name in ("rows", "wts", "hid")}
    return (
        Build(
            name="with the shared expert" if shared else "experts",
            function=combine_block,
            arguments={
                **pointers,
                "s_ptr": launch.pointer("s" if shared else "hid"),
                "num_rows": "i32",
                "block": "i32",
            },
            constants={
                "HIDDEN": launch.columns("hid"),
                "BLOCK": block,
                "PAIRS": launch.columns("wts"),
                "SHARED": shared,
                "ROWS": rows_at_once,
                "COLUMNS": columns,
            },
            num_warps=warps,
            grid=(-(-launch.num_rows // rows_at_once), -(-block // columns)),
        ),
    )
