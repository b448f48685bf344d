"""NVFP4 weights times a few rows of activations (W4A16): the Triton function that `linear` and `head` launch.

The weights are read as the checkpoint has them, once for each `ROWS` rows of x:

    packed  [N, K/2]   uint8, the low nibble is the even column
    scale   [N, K/16]  the bits of one e4m3 number for 16 columns of an output
    globals [parts]    fp32, one for each matrix of those joined along N

A program is one warp, whose lanes lie along K, a block of sixteen columns each (`nvfp4_blocks.py`): it reads 256 bytes
in a row and sums without shared memory; no layout has an axis for which Triton 3.6 and 3.7 would choose differently.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.linear.few_rows import ROWS_AT_ONCE, rows_at_once
from firmtoken.runtime.kernels.nvfp4_blocks import (
    BLOCK_CODES,
    CODES_BYTES,
    RAISED,
    UNSHIFT,
    WARP_LANES,
    load_codes,
    load_columns,
    multiply_block,
    tile_of_sums,
)

INTEGERS = (
    "num_rows",
    "num_outputs",
    "num_blocks",
    "x_stride_words",
    "y_stride",
    "start_1",
    "start_2",
    "start_3",
)


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_rows(  # noqa: C901  a kernel is one function
    x_ptr,
    packed_ptr,
    scale_ptr,
    globals_ptr,
    norm_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    num_blocks,
    x_stride_words,
    y_stride,
    start_1,
    start_2,
    start_3,
    eps,
    ROWS: tl.constexpr,
    NORMED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UNROLL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """y[num_rows, num_outputs] = x[num_rows, 16 num_blocks] w^T, or rmsnorm(x) * norm in place of x where `NORMED`.

    x bf16, rows of 16-byte words; norm fp32 [K]; y of any float type. Joined matrix p begins at output `start_p`.
    Program (i, j), one warp, makes OUTPUTS outputs for ROWS rows. NaN in scales does not come here. EARLY
    (`early_start.py`): the weights must be older than the launch before.
    """
    lane = tl.arange(0, WARP_LANES)[None, :]
    first_output = tl.program_id(0) * OUTPUTS
    first_row = tl.program_id(1) * ROWS
    x_row_ptr = x_ptr + first_row.to(tl.int64) * x_stride_words * 8
    sums = ()
    for _ in tl.static_range(ROWS * OUTPUTS):
        sums += (tl.zeros((1, WARP_LANES), tl.float32),)
    squares = ()
    for _ in tl.static_range(ROWS):
        squares += (tl.zeros((1, WARP_LANES), tl.float32),)

    for step in range(0, num_blocks, WARP_LANES * UNROLL):
        # All weights of a step are asked for before any is used.
        codes = ()
        scales = ()
        for turn in tl.static_range(UNROLL):
            block = lane + (step + turn * WARP_LANES)
            for group in tl.static_range(OUTPUTS):
                output = (first_output + group).to(tl.int64)
                taken = (block < num_blocks) & (output < num_outputs)
                row_ptr = packed_ptr + output * num_blocks * CODES_BYTES
                codes += (load_codes(row_ptr, block, taken),)
                scales += (tl.load(scale_ptr + output * num_blocks + block, mask=taken, other=0),)
        if EARLY:  # noqa: SIM102  one is known to the compiler, the other is not
            if step == 0:
                start_next_after_last()
        for turn in tl.static_range(UNROLL):
            block = lane + (step + turn * WARP_LANES)
            inside = block < num_blocks
            if NORMED:
                norm = load_columns(norm_ptr, block, inside, RAISED)
            new_squares = ()
            new_sums = ()
            for row in tl.static_range(ROWS):
                there = inside & (first_row + row < num_rows)
                x_ptr_of_row = x_row_ptr + row * x_stride_words * 8
                columns = load_columns(x_ptr_of_row, block, there, 1.0 if NORMED else RAISED)
                if NORMED:
                    new_squares += (squares[row] + _squares(columns),)
                    columns = _scaled(columns, norm)
                for group in tl.static_range(OUTPUTS):
                    found = multiply_block(
                        codes[turn * OUTPUTS + group], scales[turn * OUTPUTS + group], columns
                    )
                    new_sums += (sums[row * OUTPUTS + group] + found,)
            sums = new_sums
            if NORMED:
                squares = new_squares

    output = first_output + tl.arange(0, OUTPUTS)[None, :]
    part = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
    factor = tl.load(globals_ptr + part, mask=output < num_outputs, other=0.0) * UNSHIFT
    for row in tl.static_range(ROWS):
        found = tile_of_sums(sums[row * OUTPUTS : (row + 1) * OUTPUTS], 1, OUTPUTS) * factor
        if NORMED:
            mean = tl.sum(squares[row], axis=1)[:, None] / (num_blocks * BLOCK_CODES)
            found *= tl.rsqrt(mean + eps)
        kept = (output < num_outputs) & (first_row + row < num_rows)
        at = y_ptr + (first_row + row).to(tl.int64) * y_stride + output
        tl.store(at, found.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def _squares(columns):
    """Sum of the squares of sixteen columns."""
    sums = columns[0] * columns[0]
    for index in tl.static_range(1, 16):
        sums += columns[index] * columns[index]
    return sums


@triton.jit
def _scaled(columns, factors):
    """Each of sixteen columns times its factor."""
    scaled = ()
    for index in tl.static_range(16):
        scaled += (columns[index] * factors[index],)
    return scaled


def launch_grid(num_rows: int, num_outputs: int, *, outputs: int) -> tuple[int, int]:
    """Programs of a launch."""
    rows = rows_at_once(num_rows)
    return -(-num_outputs // _outputs(rows, outputs)), -(-num_rows // rows)


def launch_constants(
    rows: int, *, normed: bool, outputs: int, unroll: int, early: bool
) -> dict[str, int | bool]:
    """Constants of the form for `rows` rows; with more rows there are loads enough in flight without unrolling."""
    return {
        "ROWS": rows,
        "NORMED": normed,
        "OUTPUTS": _outputs(rows, outputs),
        "UNROLL": max(1, unroll // rows),
        "EARLY": early,
    }


def _outputs(rows: int, outputs: int) -> int:
    # Eight rows leave no registers for more: four outputs are slower, and with a norm they spilled on capability 10.0.
    return min(outputs, 2) if rows == ROWS_AT_ONCE[-1] else outputs


def product_arguments(y: str) -> dict[str, str]:
    """Types of the arguments of both functions, given y's."""
    return {
        "x_ptr": "*bf16",
        "packed_ptr": "*u8",
        "scale_ptr": "*u8",
        "globals_ptr": "*fp32",
        "norm_ptr": "*fp32",
        "y_ptr": y,
        **dict.fromkeys(INTEGERS, "i32"),
        "eps": "fp32",
    }
