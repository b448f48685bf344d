"""FP8 or bf16 weights times several rows of bf16 activations on tensor cores: the other Triton function of `linear`.

From three rows on `plain_rows` is bound by its arithmetic, not by the weights it reads. Here a program has OUTPUTS
outputs for up to ROWS rows and walks along K with STAGES blocks on their way through shared memory. FP8 codes become
numbers of the type of x, exactly: e4m3fn has three bits after the point, bf16 seven.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.linear.plain_rows import INTEGERS

ROWS_OF_A_TILE = 16
"""Of tensor cores, the fewest."""
SHIFTED = tl.constexpr(2.0**120)


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_tiles(
    x_ptr,
    codes_ptr,
    scales_ptr,
    tail_ptr,
    y_ptr,
    num_rows,
    num_coded,
    num_outputs,
    num_chunks,
    x_stride_chunks,
    y_stride,
    start_1,
    start_2,
    start_3,
    FORMAT: tl.constexpr,
    TAIL: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """As `multiply_rows`; program (i, j) makes OUTPUTS outputs of ROWS rows."""
    if EARLY:
        start_next_after_last()
    first_output = tl.program_id(0) * OUTPUTS
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if FORMAT != "bf16" and first_output < num_coded:
        _multiply(
            x_ptr, codes_ptr, scales_ptr, y_ptr, row, first_output, 0, num_rows, num_coded, num_chunks,
            x_stride_chunks, y_stride, start_1, start_2, start_3, FORMAT, OUTPUTS, ROWS, BLOCK, STAGES,
        )  # fmt: skip
    if (FORMAT == "bf16" or TAIL) and first_output >= num_coded:
        _multiply(
            x_ptr, tail_ptr, scales_ptr, y_ptr, row, first_output, num_coded, num_rows, num_outputs, num_chunks,
            x_stride_chunks, y_stride, start_1, start_2, start_3, "bf16", OUTPUTS, ROWS, BLOCK, STAGES,
        )  # fmt: skip


@triton.jit
def _multiply(
    x_ptr,
    w_ptr,
    scales_ptr,
    y_ptr,
    row,
    first_output,
    base,
    num_rows,
    end,
    num_chunks,
    x_stride_chunks,
    y_stride,
    start_1,
    start_2,
    start_3,
    FORMAT: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Outputs `first_output` to `end`; `base` has the first line of w."""
    width = num_chunks * 16
    output = first_output + tl.arange(0, OUTPUTS)
    has_row = row < num_rows
    has_output = output < end
    x_row = row.to(tl.int64)[:, None] * (x_stride_chunks * 8)
    line = (output - base).to(tl.int64)[:, None] * width
    sums = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for start in tl.range(0, width, BLOCK, num_stages=STAGES):
        column = (start + tl.arange(0, BLOCK))[None, :]
        inside = column < width
        w = tl.load(w_ptr + line + column, mask=has_output[:, None] & inside, other=0.0)
        x = tl.load(x_ptr + x_row + column, mask=has_row[:, None] & inside, other=0.0)
        sums = tl.dot(x, tl.trans(_narrow(w, x.dtype, FORMAT)), sums)
    if FORMAT != "bf16":
        matrix = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
        sums *= tl.load(scales_ptr + matrix, mask=has_output, other=0.0)[None, :]
    at = y_ptr + row.to(tl.int64)[:, None] * y_stride + output[None, :]
    tl.store(at, sums.to(y_ptr.dtype.element_ty), mask=has_row[:, None] & has_output[None, :])


@triton.jit
def _narrow(codes, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """Numbers of the type of x."""
    if FORMAT == "fp8_bits":
        numbers = ((codes.to(tl.int32) << 20) & -0x78100000).to(tl.float32, bitcast=True) * SHIFTED
    else:
        numbers = codes
    return numbers.to(dtype)


def tile_grid(num_rows: int, num_outputs: int, *, tile_outputs: int) -> tuple[int, int]:
    """Programs of a launch."""
    return -(-num_outputs // tile_outputs), -(-num_rows // ROWS_OF_A_TILE)


def tile_constants(
    *, format_name: str, tail: bool, tile_outputs: int, block: int, stages: int, early: bool
) -> dict[str, int | str | bool]:
    """Constants of the function."""
    return {
        "FORMAT": format_name,
        "TAIL": tail,
        "ROWS": ROWS_OF_A_TILE,
        "OUTPUTS": tile_outputs,
        "BLOCK": block,
        "STAGES": stages,
        "EARLY": early,
    }
