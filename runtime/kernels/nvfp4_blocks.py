"""NVFP4 blocks in registers: sixteen codes and their scale to a lane (device functions in Triton, no torch).

    codes  one int64 of a row of packed [N, K/2]: sixteen codes, the lowest nibble is the first column
    scale  the bits of one e4m3 number, a byte of [N, K/16]

Codes j and j + 4 of a 32-bit word move together to its two halves, onto the fields of bf16; the bits of e4m3, less the
sign, are moved onto fp16:

    s 000000ee m000000    bf16: value of the code * 2^-126
    s 0eeeemm m0000000    fp16: value of the scale * 2^-8

Both are exact, subnormals included; no FP8 unit is needed, so one source serves capability 8.0 to 12.0.

Products and sums are fp32, with x * 2^64 (`RAISED`) so that they are far from its ends: |x| from 2^-64 to 2^63 is as
exact as fp32 is. Whoever has summed multiplies by `UNSHIFT`. NaN in scales does not come here.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

WARP_LANES = tl.constexpr(32)
BLOCK_CODES = tl.constexpr(16)
CODES_BYTES = tl.constexpr(8)
"""Of a block's codes: what a lane loads at once."""
FIELDS = tl.constexpr(
    -0x7E400000
)  # 0x81C00000: sign, two bits of the exponent, one of the mantissa
EVEN_MASK = tl.constexpr(0x000F000F)
EVEN_FACTOR = tl.constexpr(0x1040)
ODD_MASK = tl.constexpr(0x00F000F0)
ODD_FACTOR = tl.constexpr(0x104)
RAISED = tl.constexpr(2.0**64)
UNSHIFT = tl.constexpr(2.0 ** (126 - 64 + 8))


@triton.jit
def decode_pair(word, FACTOR: tl.constexpr, MASK: tl.constexpr):
    """fp32 of the two codes of an int32 word under MASK, in its low and its high half, times 2^-126.

    FACTOR copies a code to two places of its half: to where its sign belongs and to where the rest does. One
    multiplication does both, beside the integer units, which would be what a card with fast memory waits for.
    """
    halves = (word & MASK) * FACTOR
    low = ((halves << 16) & FIELDS).to(tl.float32, bitcast=True)
    high = (halves & FIELDS).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def dot_word(word, low_columns, high_columns):
    """fp32: the eight codes of an int32 word times four columns for its low half and four for its high half."""
    low, high = decode_pair(word, EVEN_FACTOR, EVEN_MASK)
    sums = low * low_columns[0] + high * high_columns[0]
    low, high = decode_pair(word, ODD_FACTOR, ODD_MASK)
    sums += low * low_columns[1]
    sums += high * high_columns[1]
    word = word >> 8
    low, high = decode_pair(word, EVEN_FACTOR, EVEN_MASK)
    sums += low * low_columns[2]
    sums += high * high_columns[2]
    low, high = decode_pair(word, ODD_FACTOR, ODD_MASK)
    sums += low * low_columns[3]
    sums += high * high_columns[3]
    return sums


@triton.jit
def decode_scale(bits):
    """fp32 of e4m3 bits, times 2^-8."""
    moved = ((bits.to(tl.int32) & 0x7F) << 7) | ((bits.to(tl.int32) & 0x80) << 8)
    return moved.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_columns(x_ptr, block, inside, factor):
    """Sixteen fp32 [A, B]: the columns of each block [A, B], times a factor; 0 outside."""
    # Two loads of 16 bytes, for bf16, and taken apart in registers.
    at = x_ptr + (block * BLOCK_CODES)[:, :, None] + tl.arange(0, 8)[None, None, :]
    there = inside[:, :, None]
    first = tl.load(at, mask=there, other=0.0).to(tl.float32) * factor
    second = tl.load(at + 8, mask=there, other=0.0).to(tl.float32) * factor
    return split_columns(first) + split_columns(second)


@triton.jit
def split_columns(columns):
    """[A, B, 8] as eight [A, B]."""
    shape: tl.constexpr = (columns.shape[0], columns.shape[1], 2, 2, 2)
    even, odd = tl.split(
        tl.reshape(columns, shape)
    )  # by the lowest bit of the column, [A, B, 2, 2]
    c0_c4, c2_c6 = tl.split(even)
    c1_c5, c3_c7 = tl.split(odd)
    c0, c4 = tl.split(c0_c4)
    c2, c6 = tl.split(c2_c6)
    c1, c5 = tl.split(c1_c5)
    c3, c7 = tl.split(c3_c7)
    return c0, c1, c2, c3, c4, c5, c6, c7


@triton.jit
def load_codes(row_ptr, block, inside):
    """int64 [A, B]: the codes of blocks of a row, or rows, of bytes."""
    at = (row_ptr + block * CODES_BYTES).to(tl.pointer_type(tl.int64))
    return tl.load(at, mask=inside, other=0)


@triton.jit
def multiply_block(codes, scale, columns):
    """fp32 [A, B]: each block's codes times its columns (`load_columns`), times its scale bits."""
    sums = dot_word(codes.to(tl.int32), columns[0:4], columns[4:8])
    sums += dot_word((codes >> 32).to(tl.int32), columns[8:12], columns[12:16])
    return sums * decode_scale(scale)


@triton.jit
def tile_of_sums(sums, GROUPS: tl.constexpr, OUTPUTS: tl.constexpr):
    """fp32 [GROUPS, OUTPUTS]: what the lanes of each group sum to, for each of OUTPUTS tensors [GROUPS, LANES]."""
    column = tl.arange(0, OUTPUTS)[None, :]
    tile = tl.zeros((GROUPS, OUTPUTS), tl.float32)
    for output in tl.static_range(OUTPUTS):
        tile = tl.where(column == output, tl.sum(sums[output], axis=1)[:, None], tile)
    return tile


def outputs_of_a_program(warps: int, lanes: int, outputs: int) -> int:
    """Where a group of `lanes` lanes makes `outputs` numbers."""
    return outputs * warps * int(WARP_LANES) // lanes
