"""FP8 weights times many rows of bf16 activations on tensor cores: the function of `linear` for prompts.

Arrays as in `plain_rows.py`. As in `nvfp4_operand.py` the product is w x^T: codes go to shared memory as they are, each
lane loads and converts those that its place in the left operand wants. FP8 codes become numbers of the type of x by way
of fp32, exactly (e4m3fn has three bits after the point, bf16 seven): on 9.0 the direct conversion is an instruction of
a sixteenth of the rate.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

from collections.abc import Iterator

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.linear.nvfp4_many import many_grid
from firmtoken.runtime.kernels.linear.plain_rows import product_arguments
from firmtoken.runtime.kernels.linear.plain_tiles import SHIFTED
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes

INTEGERS = (
    "num_rows",
    "num_coded_octets",
    "num_octets",
    "y_stride_octets",
    "start_1",
    "start_2",
    "start_3",
)
TAIL_OUTPUTS = tl.constexpr(64)
"""Of a program with bf16 rows, which take twice the shared memory."""


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_many(
    x_ptr,
    codes_ptr,
    scales_ptr,
    tail_ptr,
    y_ptr,
    num_rows,
    num_coded_octets,
    num_octets,
    y_stride_octets,
    start_1,
    start_2,
    start_3,
    WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """y[num_rows, 8 num_octets] = x[num_rows, WIDTH] w^T, x bf16; joined matrix p begins at output `start_p`.

    Outputs, those of them that are coded and the distance of rows of y are counted in eights, so that stores of them
    are known to be whole.

    FORMAT: `fp8` (converted by the card) or `fp8_bits` (codes as int8). Program (tile of coded outputs, tile of rows);
    tiles of the tail come after those of the coded outputs.
    """
    num_coded = num_coded_octets * 8
    num_outputs = num_octets * 8
    coded_tiles = (num_coded + (OUTPUTS - 1)) // OUTPUTS
    tile = tl.program_id(0)
    if tile < coded_tiles:
        _multiply(
            x_ptr, codes_ptr, scales_ptr, y_ptr, tile, 0, num_rows, num_coded, y_stride_octets, start_1, start_2,
            start_3, WIDTH, FORMAT, ROWS, OUTPUTS, BLOCK, STAGES,
        )  # fmt: skip
    elif TAIL:
        _multiply(
            x_ptr, tail_ptr, scales_ptr, y_ptr, tile - coded_tiles, num_coded, num_rows, num_outputs, y_stride_octets,
            start_1, start_2, start_3, WIDTH, "bf16", ROWS, TAIL_OUTPUTS, BLOCK, STAGES,
        )  # fmt: skip


@triton.jit
def _multiply(
    x_ptr,
    w_ptr,
    scales_ptr,
    y_ptr,
    tile,
    base,
    num_rows,
    end,
    y_stride_octets,
    start_1,
    start_2,
    start_3,
    WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Outputs up to `end` of a tile that is counted from `base`, which is the first line of w."""
    line = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    output = base + line
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    w_at = (tl.minimum(line, end - base - 1) * WIDTH)[:, None] + column
    x_at = (tl.minimum(row, num_rows - 1) * WIDTH)[:, None] + column
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for start in tl.range(0, WIDTH, BLOCK, num_stages=STAGES):
        # What a step adds is added to the pointer, once for all lanes.
        w = _widen(tl.load(w_ptr + start + w_at), x_ptr.dtype.element_ty, FORMAT)
        x = tl.load(x_ptr + start + x_at)
        sums = tl.dot(w, tl.trans(x), sums)
    if FORMAT != "bf16":
        part = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
        sums *= tl.load(scales_ptr + part, mask=output < end, other=0.0)[:, None]
    at = y_ptr + row.to(tl.int64)[:, None] * (y_stride_octets * 8) + output[None, :]
    kept = (row < num_rows)[:, None] & (output < end)[None, :]
    tl.store(at, tl.trans(sums).to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def _widen(codes, kind: tl.constexpr, FORMAT: tl.constexpr):
    """Numbers of the type of x."""
    if FORMAT == "bf16":
        numbers = codes
    elif FORMAT == "fp8":
        numbers = codes.to(tl.float32).to(kind)
    else:
        moved = (codes.to(tl.int32) << 20) & -0x78100000
        numbers = (moved.to(tl.float32, bitcast=True) * SHIFTED).to(kind)
    return numbers


def many_builds(
    launch: Launch, *, fp8_units: int, large_step: int, small_step: int, **shapes: int
) -> tuple[Build, ...]:
    """A form for each tile that so many rows may ask for, with bf16 rows after the coded ones and without."""
    return tuple(
        _builds(
            launch,
            "fp8" if fp8_units else "fp8_bits",
            (small_step, large_step),
            TileShapes(**shapes),
        )
    )


def _builds(
    launch: Launch, format_name: str, steps: tuple[int, int], cut: TileShapes
) -> Iterator[Build]:
    for rows in SHAPES:
        for tail in (False, True):
            if rows <= cut.tile_rows(launch.num_rows):
                constants = cut.sizes(rows)
                yield Build(
                    name=f"tiles of {rows} rows" + (", bf16 tail" if tail else ""),
                    function=multiply_many,
                    arguments={
                        **{
                            name: kind
                            for name, kind in product_arguments(
                                format_name, launch.pointer("y")
                            ).items()
                            if kind.startswith("*")
                        },
                        **dict.fromkeys(INTEGERS, "i32"),
                    },
                    constants={
                        "WIDTH": launch.columns("w"),
                        "FORMAT": format_name,
                        "TAIL": tail,
                        "BLOCK": steps[rows == SHAPES[-1]],
                        **constants,
                    },
                    num_warps=cut.warps(rows),
                    grid=many_grid(
                        launch.num_rows, launch.outputs("w"), rows, constants["OUTPUTS"]
                    ),
                )
