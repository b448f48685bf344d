"""NVFP4 weights times many rows of activations on tensor cores (W4A16): the function of `linear` for prompts.

Arrays as in `nvfp4_rows.py`; K is a multiple of 128.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

from collections.abc import Iterator

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.nvfp4_operand import UNSHIFT, multiply_tile, order_build
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes

INTEGERS = (
    "num_rows",
    "num_octets",
    "y_stride_octets",
    "start_1",
    "start_2",
    "start_3",
)


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_many(
    x_ptr,
    packed_ptr,
    scale_ptr,
    globals_ptr,
    share_ptr,
    y_ptr,
    num_rows,
    num_octets,
    y_stride_octets,
    start_1,
    start_2,
    start_3,
    WIDTH: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
):
    """y[num_rows, 8 num_octets] = x w^T, each row times share (fp32 [num_rows]) where SHARED.

    x [num_rows, WIDTH] bf16 (fp32 in tests), its columns in operand order (`nvfp4_operand.py`); rows of y are
    8 y_stride_octets apart. Outputs are counted in eights so that stores of them are known to be whole. Joined matrix p
    begins at output `start_p`. Program (tile of outputs, tile of rows).
    """
    num_outputs = num_octets * 8
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    x_row = tl.minimum(row, num_rows - 1)
    sums = multiply_tile(
        x_ptr,
        x_row * WIDTH,
        packed_ptr,
        scale_ptr,
        tl.minimum(output, num_outputs - 1),
        WIDTH,
        ROWS,
        OUTPUTS,
        STAGES,
        QUADS,
    )
    part = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
    factor = tl.load(globals_ptr + part, mask=output < num_outputs, other=0.0) * UNSHIFT
    found = tl.trans(sums * factor[:, None])
    if SHARED:
        found *= tl.load(share_ptr + x_row)[:, None]
    at = y_ptr + row.to(tl.int64)[:, None] * (y_stride_octets * 8) + output[None, :]
    kept = (row < num_rows)[:, None] & (output < num_outputs)[None, :]
    tl.store(at, found.to(y_ptr.dtype.element_ty), mask=kept)


def many_builds(launch: Launch, **shapes: int) -> tuple[Build, ...]:
    """A form for each tile that so many rows may ask for."""
    pointer = launch.pointer("x")
    return (
        order_build(pointer, launch.num_rows * launch.columns("w"), quads=shapes["quads"]),
        *product_builds(launch, "w", pointer, shared=False, shapes=shapes),
    )


def product_builds(
    launch: Launch, weight: str, pointer: str, *, shared: bool, shapes: dict[str, int]
) -> Iterator[Build]:
    """The same for a named weight."""
    cut = TileShapes(**shapes)
    for rows in SHAPES:
        if rows <= cut.tile_rows(launch.num_rows):
            constants = cut.constants(rows)
            yield Build(
                name=f"tiles of {rows} rows" + (" with shares" if shared else ""),
                function=multiply_many,
                arguments={
                    "x_ptr": pointer,
                    **dict.fromkeys(("packed_ptr", "scale_ptr"), "*u8"),
                    **dict.fromkeys(("globals_ptr", "share_ptr"), "*fp32"),
                    "y_ptr": pointer,
                    **dict.fromkeys(INTEGERS, "i32"),
                },
                constants={"WIDTH": launch.columns(weight), "SHARED": shared, **constants},
                num_warps=cut.warps(rows),
                grid=many_grid(launch.num_rows, launch.outputs(weight), rows, constants["OUTPUTS"]),
            )


def many_grid(num_rows: int, num_outputs: int, rows: int, outputs: int) -> tuple[int, int]:
    """Programs of a launch."""
    return -(-num_outputs // outputs), -(-num_rows // rows)
