"""FP8 or bf16 weights times a few rows of bf16 activations: the Triton function that `linear` launches.

The weights are read once for each `ROWS` rows of x. A program is one warp with its lanes along K, 16 bytes of weights
each, so it reads 512 bytes in a row and needs no shared memory. FP8 codes (e4m3fn) become fp32 by the card's own
instruction from capability 8.9 on, below it by bits moved onto the fields of fp32, s 0000eeee mmm0..., which is the
code's value * 2^-120, exact, subnormals included. There x is multiplied by 2^64, so that products stay far from the
ends of fp32.

    codes   [N, K]      e4m3fn seen as int8; or bf16
    tail    [N2, K]     bf16: outputs N.., joined to the coded ones
    scales  [parts]     fp32, one for each coded matrix of those joined along N; not read for bf16
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.linear.few_rows import rows_at_once

LANES = tl.constexpr(32)
CODES = tl.constexpr(16)
"""FP8 codes of a lane's load; of bf16 there are half as many."""
RAISED = tl.constexpr(2.0**64)
UNSHIFT = tl.constexpr(2.0 ** (120 - 64))

INTEGERS = (
    "num_rows",
    "num_coded",
    "num_outputs",
    "num_chunks",
    "x_stride_chunks",
    "y_stride",
    "start_1",
    "start_2",
    "start_3",
)


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_rows(
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
    UNROLL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """y[num_rows, num_outputs] = x[num_rows, 16 num_chunks] w^T; x bf16, rows of 16-byte words; y of any float type.

    FORMAT: `fp8` (converted by the card), `fp8_bits` (codes as int8) or `bf16` (nothing is coded). Joined matrix p
    begins at output `start_p`. Program (i, j) makes OUTPUTS outputs for ROWS rows; where both kinds are there
    (TAIL), `num_coded` is a multiple of a program's outputs. EARLY (`early_start.py`): the weights must be older than
    the launch before.
    """
    first_output = tl.program_id(0) * OUTPUTS
    first_row = tl.program_id(1) * ROWS
    x_row_ptr = x_ptr + first_row.to(tl.int64) * x_stride_chunks * 8
    if FORMAT != "bf16" and first_output < num_coded:
        _multiply(
            x_row_ptr, codes_ptr, scales_ptr, y_ptr, first_row, first_output, 0, num_rows, num_coded, num_chunks,
            x_stride_chunks, y_stride, start_1, start_2, start_3, FORMAT, CODES, ROWS, OUTPUTS, UNROLL, EARLY,
        )  # fmt: skip
    if (FORMAT == "bf16" or TAIL) and first_output >= num_coded:
        _multiply(
            x_row_ptr, tail_ptr, scales_ptr, y_ptr, first_row, first_output, num_coded, num_rows, num_outputs,
            num_chunks * 2, x_stride_chunks, y_stride, start_1, start_2, start_3,
            "bf16", CODES // 2, ROWS, OUTPUTS, UNROLL, EARLY,
        )  # fmt: skip


@triton.jit
def _multiply(  # noqa: C901  a kernel is one function (design/STYLE.md)
    x_ptr,
    w_ptr,
    scales_ptr,
    y_ptr,
    first_row,
    first_output,
    base,
    num_rows,
    end,
    num_words,
    x_stride_chunks,
    y_stride,
    start_1,
    start_2,
    start_3,
    FORMAT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UNROLL: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Outputs `first_output` to `end`; `base` has the first line of w, a line is num_words * WIDTH numbers."""
    sums = ()
    for _ in tl.static_range(OUTPUTS * ROWS):
        sums += (tl.zeros((LANES,), tl.float32),)
    for step in range(0, num_words, LANES * UNROLL):
        w = _load_lines(w_ptr, step, first_output, base, end, num_words, WIDTH, OUTPUTS, UNROLL)
        if EARLY:  # noqa: SIM102  one is known to the compiler, the other is not
            if step == 0:
                start_next_after_last()
        x = _load_rows(
            x_ptr,
            step,
            num_rows - first_row,
            num_words,
            x_stride_chunks * 8,
            WIDTH,
            ROWS,
            UNROLL,
        )
        for turn in tl.static_range(UNROLL):
            new_sums = ()
            for group in tl.static_range(OUTPUTS):
                numbers = _widen(w[turn * OUTPUTS + group], FORMAT)
                for row in tl.static_range(ROWS):
                    raised = _raise(x[turn * ROWS + row], FORMAT)
                    new_sums += (sums[group * ROWS + row] + tl.sum(numbers * raised, axis=1),)
            sums = new_sums
    for group in tl.static_range(OUTPUTS):
        output = first_output + group
        factor = 1.0
        if FORMAT != "bf16":
            matrix = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
            factor = tl.load(scales_ptr + matrix, mask=output < end, other=0.0) * (
                UNSHIFT if FORMAT == "fp8_bits" else 1.0
            )
        for row in tl.static_range(ROWS):
            found = tl.sum(sums[group * ROWS + row], axis=0) * factor
            at = y_ptr + (first_row + row).to(tl.int64) * y_stride + output
            kept = (output < end) & (first_row + row < num_rows)
            tl.store(at, found.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def _load_lines(
    w_ptr,
    step,
    first_output,
    base,
    end,
    num_words,
    WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """A word of each lane for UNROLL turns of OUTPUTS lines of w."""
    words = ()
    for turn in tl.static_range(UNROLL):
        word = tl.arange(0, LANES)[:, None] + (step + turn * LANES)
        column = word * WIDTH + tl.arange(0, WIDTH)[None, :]
        for group in tl.static_range(OUTPUTS):
            output = first_output + group
            at = w_ptr + ((output - base).to(tl.int64) * num_words * WIDTH + column)
            taken = tl.broadcast_to((word < num_words) & (output < end), (LANES, WIDTH))
            words += (tl.load(at, mask=taken, other=0.0),)
    return words


@triton.jit
def _load_rows(
    x_ptr,
    step,
    num_rows,
    num_words,
    stride,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """What goes with those words of the rows of x, a copy for each warp, so that it lies as w does."""
    words = ()
    for turn in tl.static_range(UNROLL):
        word = tl.arange(0, LANES)[:, None] + (step + turn * LANES)
        column = word * WIDTH + tl.arange(0, WIDTH)[None, :]
        column = tl.broadcast_to(column, (LANES, WIDTH))
        for row in tl.static_range(ROWS):
            there = tl.broadcast_to((word < num_words) & (row < num_rows), (LANES, WIDTH))
            words += (tl.load(x_ptr + row * stride + column, mask=there, other=0.0),)
    return words


@triton.jit
def _raise(x, FORMAT: tl.constexpr):
    """fp32 of x, for `fp8_bits` times 2^64."""
    wide = x.to(tl.float32)
    return wide * RAISED if FORMAT == "fp8_bits" else wide


@triton.jit
def _widen(codes, FORMAT: tl.constexpr):
    """fp32 of what was loaded; of `fp8_bits` times 2^-120."""
    if FORMAT == "fp8_bits":
        return ((codes.to(tl.int32) << 20) & -0x78100000).to(tl.float32, bitcast=True)
    return codes.to(tl.float32)


def outputs_at_once(rows: int, outputs: int) -> int:
    """`OUTPUTS` of the form for `rows` rows: from four on x is what is read most, and twice as many share it."""
    return 2 * outputs if rows >= 4 else outputs


def launch_grid(num_rows: int, num_outputs: int, *, outputs: int) -> tuple[int, int]:
    """Programs of a launch."""
    rows = rows_at_once(num_rows)
    return -(-num_outputs // outputs_at_once(rows, outputs)), -(-num_rows // rows)


def launch_constants(
    rows: int, *, format_name: str, tail: bool, outputs: int, unroll: int, early: bool
) -> dict[str, int | str | bool]:
    """Constants of the form for `rows` rows; with more rows there are loads enough in flight without unrolling."""
    return {
        "FORMAT": format_name,
        "TAIL": tail,
        "ROWS": rows,
        "OUTPUTS": outputs_at_once(rows, outputs),
        "UNROLL": max(1, unroll // rows),
        "EARLY": early,
    }


def product_arguments(format_name: str, y: str) -> dict[str, str]:
    """Types of the arguments of both functions of `linear`, given y's; of bf16 weights no scales are read."""
    codes = {"fp8": "*fp8e4nv", "fp8_bits": "*i8", "bf16": "*bf16"}[format_name]
    return {
        "x_ptr": "*bf16",
        "codes_ptr": codes,
        "scales_ptr": "*bf16" if format_name == "bf16" else "*fp32",
        "tail_ptr": "*bf16",
        "y_ptr": y,
        **dict.fromkeys(INTEGERS, "i32"),
    }
