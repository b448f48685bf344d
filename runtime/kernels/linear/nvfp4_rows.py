"""NVFP4 weights times a few rows of activations (W4A16): the Triton function that `linear` and `head` launch.

The weights are read as the checkpoint has them, once for each `ROWS` rows of x:

    packed  [N, K/2]   uint8, the low nibble is the even column; seen as int32 words of eight codes
    scale   [N, K/16]  the bits of one e4m3 number for 16 columns of an output
    globals [parts]    fp32, one for each matrix of those joined along N

A program is one warp, whose lanes lie along K, a word each: it reads 128 bytes in a row and sums without shared memory,
and no layout has an axis for which Triton 3.6 and 3.7 would choose differently. Codes j and j + 4 of
a word move together to its two halves, onto the fields of bf16; the bits of e4m3 are moved onto fp16:

    s 000000ee m000000    bf16: value of the code * 2^-126
    s 0eeeemmm 0000000    fp16: value of the scale * 2^-8

Both are exact, subnormals included, and need no FP8 unit, so one source serves capability 8.0 to 12.0.

Products and sums are fp32, with x * 2^64 so that they are far from its ends: |x| from 2^-64 to 2^63 is as exact as fp32
is. What was shifted comes back at the end with the global scale.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build

ROWS_AT_ONCE = (1, 2, 4, 8)
"""Rows of x that a program holds; more rows are more programs, which read the weights again (from L2, as a rule)."""
WORD_CODES = tl.constexpr(8)
LANES = tl.constexpr(32)
RAISED = tl.constexpr(2.0**64)
UNSHIFT = tl.constexpr(2.0 ** (126 - 64 + 8))


INTEGERS = (
    "num_rows",
    "num_outputs",
    "num_words",
    "x_stride_words",
    "y_stride",
    "start_1",
    "start_2",
    "start_3",
)


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_rows(  # noqa: C901, PLR0915  a kernel is one function
    x_ptr,
    packed_ptr,
    scale_ptr,
    globals_ptr,
    norm_ptr,
    y_ptr,
    num_rows,
    num_outputs,
    num_words,
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
):
    """y[num_rows, num_outputs] = x[num_rows, 8 num_words] w^T, or rmsnorm(x) * norm in place of x where `NORMED`.

    x: the bits of bf16 as int16, rows of 16-byte words; norm fp32 [K]; y of any float type. Joined matrix p begins at
    output `start_p`. Program (i, j), one warp, makes OUTPUTS outputs for ROWS rows. NaN in scales does not come here.
    """
    lane = tl.arange(0, LANES)
    j = tl.arange(0, 4)[None, :]  # with codes j and j + 4 of a word
    first_output = tl.program_id(0) * OUTPUTS
    first_row = tl.program_id(1) * ROWS
    sums = ()
    squares = ()
    for _ in tl.static_range(ROWS):
        squares += (tl.zeros((LANES,), tl.float32),)
        for _ in tl.static_range(OUTPUTS):
            sums += (tl.zeros((LANES,), tl.float32),)

    for step in range(0, num_words, LANES * UNROLL):
        # All weights of a step are asked for before any is used.
        words = ()
        scales = ()
        for turn in tl.static_range(UNROLL):
            word = lane + (step + turn * LANES)
            for group in tl.static_range(OUTPUTS):
                output = (first_output + group).to(tl.int64)
                taken = (word < num_words) & (first_output + group < num_outputs)
                packed = packed_ptr + output * num_words
                blocks = scale_ptr + output * (num_words >> 1)
                words += (tl.load(packed + word, mask=taken, other=0),)
                scales += (tl.load(blocks + (word >> 1), mask=taken, other=0),)
        for turn in tl.static_range(UNROLL):
            word = lane + (step + turn * LANES)
            inside = (word < num_words)[:, None]
            column = (word * WORD_CODES)[:, None] + j  # [LANES, 4]
            low = ()
            high = ()
            new_squares = ()
            for row in tl.static_range(ROWS):
                there = inside & (first_row + row < num_rows)
                x_row = x_ptr + (first_row + row).to(tl.int64) * x_stride_words * WORD_CODES
                x_low = _widen(tl.load(x_row + column, mask=there, other=0))
                x_high = _widen(tl.load(x_row + column + 4, mask=there, other=0))
                if NORMED:
                    new_squares += (squares[row] + tl.sum(x_low * x_low + x_high * x_high, axis=1),)
                    x_low *= tl.load(norm_ptr + column, mask=inside, other=0.0)
                    x_high *= tl.load(norm_ptr + column + 4, mask=inside, other=0.0)
                low += (x_low * RAISED,)
                high += (x_high * RAISED,)
            if NORMED:
                squares = new_squares
            new_sums = ()
            for group in tl.static_range(OUTPUTS):
                w_low, w_high = _decode(words[turn * OUTPUTS + group][:, None], j)
                scale = _decode_scale(scales[turn * OUTPUTS + group])
                for row in tl.static_range(ROWS):
                    part = tl.sum(w_low * low[row] + w_high * high[row], axis=1)
                    new_sums += (sums[group * ROWS + row] + part * scale,)
            sums = new_sums

    for group in tl.static_range(OUTPUTS):
        output = first_output + group
        part = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
        factor = tl.load(globals_ptr + part, mask=output < num_outputs, other=0.0) * UNSHIFT
        for row in tl.static_range(ROWS):
            found = tl.sum(sums[group * ROWS + row], axis=0) * factor
            if NORMED:
                mean = tl.sum(squares[row], axis=0) / (num_words * WORD_CODES)
                found *= tl.rsqrt(mean + eps)
            kept = (output < num_outputs) & (first_row + row < num_rows)
            at = y_ptr + (first_row + row).to(tl.int64) * y_stride + output
            tl.store(at, found.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def _widen(bits):
    """fp32 of the bits of a bf16."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def _decode(word, j):
    """fp32 of codes j and j + 4 of a word, times 2^-126."""
    exponent = (word << tl.maximum(6 - 4 * j, 0)) >> tl.maximum(4 * j - 6, 0)
    halves = (exponent & 0x01C001C0) | ((word << (12 - 4 * j)) & -0x7FFF8000)
    low = (halves << 16).to(tl.float32, bitcast=True)
    high = (halves & -0x10000).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def _decode_scale(bits):
    """fp32 of e4m3 bits, times 2^-8."""
    moved = ((bits.to(tl.int32) & 0x7F) << 7) | ((bits.to(tl.int32) & 0x80) << 8)
    return moved.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


def rows_at_once(num_rows: int) -> int:
    """`ROWS` for a launch of so many rows."""
    return next((rows for rows in ROWS_AT_ONCE if rows >= num_rows), ROWS_AT_ONCE[-1])


def launch_grid(num_rows: int, num_outputs: int, *, normed: bool, outputs: int) -> tuple[int, int]:
    """Programs of a launch."""
    rows = rows_at_once(num_rows)
    return -(-num_outputs // _outputs(rows, outputs, normed=normed)), -(-num_rows // rows)


def launch_constants(
    rows: int, *, normed: bool, outputs: int, unroll: int
) -> dict[str, int | bool]:
    """Constants of the form for `rows` rows; with more rows there are loads enough in flight without unrolling."""
    return {
        "ROWS": rows,
        "NORMED": normed,
        "OUTPUTS": _outputs(rows, outputs, normed=normed),
        "UNROLL": max(1, unroll // rows),
    }


def _outputs(rows: int, outputs: int, *, normed: bool) -> int:
    # Eight rows with their squares leave no registers for all of them: with four outputs capability 10.0 spills.
    return max(1, outputs // 2) if normed and rows == ROWS_AT_ONCE[-1] else outputs


def linear_builds(
    num_rows: int, num_outputs: int, *, outputs: int, unroll: int
) -> tuple[Build, ...]:
    """All forms of `linear`, whose y is bf16, and the grid of its largest launch."""
    grid = launch_grid(num_rows, num_outputs, normed=False, outputs=outputs)
    return _builds("*bf16", grid, normed=False, outputs=outputs, unroll=unroll)


def head_builds(
    num_rows: int, num_outputs: int, *, eps: float, outputs: int, unroll: int
) -> tuple[Build, ...]:
    """All forms of `head`, whose logits are fp32, and the grid of its largest launch; `eps` is an argument."""
    grid = launch_grid(num_rows, num_outputs, normed=True, outputs=outputs)
    return _builds("*fp32", grid, normed=True, outputs=outputs, unroll=unroll)


def _builds(
    y: str, grid: tuple[int, int], *, normed: bool, outputs: int, unroll: int
) -> tuple[Build, ...]:
    arguments = {
        "x_ptr": "*i16",
        "packed_ptr": "*i32",
        "scale_ptr": "*u8",
        "globals_ptr": "*fp32",
        "norm_ptr": "*fp32",
        "y_ptr": y,
        **dict.fromkeys(INTEGERS, "i32"),
        "eps": "fp32",
    }
    return tuple(
        Build(
            name=f"{rows} row" + ("s" if rows > 1 else ""),
            function=multiply_rows,
            arguments=arguments,
            constants=launch_constants(rows, normed=normed, outputs=outputs, unroll=unroll),
            num_warps=1,
            grid=grid,
        )
        for rows in ROWS_AT_ONCE
    )
