"""NVFP4 weights times several rows of activations on tensor cores (W4A16): the other function of `linear` and `head`.

Arrays as in `nvfp4_rows.py`; K is a multiple of 128. A program is one warp and makes OUTPUTS outputs for ROWS rows.
Four lanes share 128 columns of an output, 32 in a row each, and decode them where the tensor core wants them: it sums
over columns in any order, if x has the same. So codes do not go through shared memory.

Weights are exact: a code has two significant bits, its scale four, bf16 eight. Where x is normed, x * norm goes in as
two numbers of bf16, the second being what the first has rounded away: 2^-16 of it is lost at most.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.linear.nvfp4_rows import INTEGERS
from firmtoken.runtime.kernels.nvfp4_blocks import (
    EVEN_FACTOR,
    EVEN_MASK,
    ODD_FACTOR,
    ODD_MASK,
)
from firmtoken.runtime.kernels.nvfp4_operand import CODE_SHIFT, UNSHIFT, fields, low_half

TILE_COLUMNS = 128
BLOCKS = tl.constexpr(8)
"""Of a tile, two to a lane."""


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def multiply_tiles(
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
    EARLY: tl.constexpr,
):
    """As `multiply_rows`; x of any float type, in which products are taken."""
    if EARLY:
        start_next_after_last()
    pieces: tl.constexpr = 2 if NORMED else 1
    num_tiles = num_blocks // BLOCKS
    first_row = tl.program_id(1) * ROWS
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    line = tl.minimum(output, num_outputs - 1).to(tl.int64)[:, None] * num_tiles
    words_ptr = packed_ptr.to(tl.pointer_type(tl.int32)) + line * 16 + tl.arange(0, 16)[None, :]
    pairs_ptr = scale_ptr.to(tl.pointer_type(tl.int16)) + line * 4 + tl.arange(0, 4)[None, :]
    column = tl.arange(0, pieces * ROWS)[:, None]  # of the tensor core: one piece of one row
    row = first_row + column % ROWS
    later = (column // ROWS).to(tl.float32)
    x_row_ptr = x_ptr + row.to(tl.int64) * x_stride_words * 8
    sums = tl.zeros((OUTPUTS, pieces * ROWS), tl.float32)
    squares = tl.zeros((pieces * ROWS, 16), tl.float32)
    for tile in tl.range(0, num_tiles, num_stages=1):
        words = tl.load(words_ptr + tile * 16)
        scales = tl.load(pairs_ptr + tile * 4)
        x = _load_columns(x_row_ptr, tile, row < num_rows)
        if NORMED:
            norm = _load_columns(norm_ptr, tile, column >= 0)
            parts = ()
            for index in tl.static_range(8):
                wide = x[index].to(tl.float32)
                squares += wide * wide
                wide *= norm[index]
                rounded = wide.to(x_ptr.dtype.element_ty).to(tl.float32)
                parts += ((wide - rounded * later).to(x_ptr.dtype.element_ty),)
            x = parts
        sums = tl.dot(_weights(words, scales, x_ptr.dtype.element_ty), _columns_first(x), sums)

    part = (output >= start_1).to(tl.int32) + (output >= start_2) + (output >= start_3)
    factor = tl.load(globals_ptr + part, mask=output < num_outputs, other=0.0) * UNSHIFT
    found = tl.sum(tl.reshape(sums, (OUTPUTS, pieces, ROWS)), axis=1) * factor[:, None]
    row = first_row + tl.arange(0, ROWS)
    if NORMED:
        total = tl.sum(squares, axis=1)
        mean = tl.max(tl.reshape(total, (pieces, ROWS)), axis=0) / (num_blocks * 16)  # all alike
        found *= tl.rsqrt(mean + eps)[None, :]
    kept = (output < num_outputs)[:, None] & (row < num_rows)[None, :]
    at = y_ptr + row.to(tl.int64)[None, :] * y_stride + output[:, None]
    tl.store(at, found.to(y_ptr.dtype.element_ty), mask=kept)


@triton.jit
def _load_columns(row_ptr, tile, there):
    """[R, 16] eight times: 32 columns in a row for each of four lanes, 4 at a time."""
    place = tl.arange(0, 16)[None, :]
    at = row_ptr + tile * 128 + (place // 4 * 32 + place % 4)
    loaded = ()
    for index in tl.static_range(8):
        loaded += (tl.load(at + index * 4, mask=there, other=0.0),)
    return loaded


@triton.jit
def _columns_first(parts):
    """[128, R] of eight [R, 16]: columns in the order of `_weights`."""
    rows: tl.constexpr = parts[0].shape[0]
    first = tl.join(tl.join(parts[0], parts[4]), tl.join(parts[2], parts[6]))
    last = tl.join(tl.join(parts[1], parts[5]), tl.join(parts[3], parts[7]))
    # By row, lane, second bit and lowest of the code, word, third bit.
    x = tl.reshape(tl.join(first, last), (rows, 4, 2, 2, 4, 2))
    x = tl.permute(x, (0, 4, 2, 1, 3, 5))
    return tl.trans(tl.reshape(x, (rows, 128)))


@triton.jit
def _weights(words, scales, kind: tl.constexpr):
    """[OUTPUTS, 128] of int32 [OUTPUTS, 16] and the bits of pairs of scales, int16 [OUTPUTS, 4]; times 2^-16.

    Columns in the order word, code / 2 % 2, lane, code % 2, code / 4 of what a lane has: codes j and j + 4 are decoded
    together, and a lane has four numbers in a row, as the tensor core's operand.
    """
    outputs: tl.constexpr = words.shape[0]
    later = words >> 8
    pairs = tl.join(
        tl.join(fields(words, EVEN_FACTOR, EVEN_MASK), fields(later, EVEN_FACTOR, EVEN_MASK)),
        tl.join(fields(words, ODD_FACTOR, ODD_MASK), fields(later, ODD_FACTOR, ODD_MASK)),
    )  # [OUTPUTS, 16, code / 2 % 2, code % 2]
    codes = tl.join(low_half(pairs, kind), low_half(pairs >> 16, kind))
    both = scales.to(tl.int32)
    scale = tl.join(_scale(both, kind), _scale(both >> 8, kind))  # [OUTPUTS, 4, 2]
    weights = tl.reshape(codes, (outputs, 4, 2, 16)) * scale[:, :, :, None]
    weights = tl.permute(tl.reshape(weights, (outputs, 4, 8, 4)), (0, 2, 1, 3))
    return tl.reshape(weights, (outputs, 128))


@triton.jit
def _scale(bits, kind: tl.constexpr):
    """The e4m3 in the low byte, times 2^110; four significant bits, so what is cut off is zero."""
    moved = ((bits << 20) & 0x07F00000) | ((bits << 24) & -0x80000000)
    scale = moved.to(tl.float32, bitcast=True) * 2.0**120 * CODE_SHIFT
    return low_half(scale.to(tl.int32, bitcast=True) >> 16, kind)


def tile_rows(num_rows: int, *, normed: bool) -> int:
    """Rows of a program: tensor cores take columns by eight, a normed row has two."""
    few = 4 if normed else 8
    return few if num_rows <= few else 2 * few


def tile_grid(
    num_rows: int, num_outputs: int, *, normed: bool, tile_outputs: int
) -> tuple[int, int]:
    """Programs of a launch."""
    return -(-num_outputs // tile_outputs), -(-num_rows // tile_rows(num_rows, normed=normed))


def tile_constants(
    rows: int, *, normed: bool, tile_outputs: int, early: bool
) -> dict[str, int | bool]:
    """Constants of the function."""
    return {"ROWS": rows, "NORMED": normed, "OUTPUTS": tile_outputs, "EARLY": early}
