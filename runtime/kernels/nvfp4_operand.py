"""NVFP4 weights as the left operand of a tensor core, for many rows of x (device functions in Triton, no torch).

The product is out^T[N,M] = w[N,K] x^T[K,M], so that the weights are wgmma's operand in registers: codes go to shared
memory as they are, and each lane loads and decodes those that its place in the operand wants. Of 128 columns of a row
four lanes have 32 each, which they load at once. A tensor core sums over columns in any order if x has the same: so x
must lie in memory in *operand order*, 128 columns at a time (bits of a column, highest first; q is the lane):

    column           q q w w d c b    w: word of eight codes; d: in which half of it; c, b: code of the half
    operand order    w w c b q q d    wgmma: a lane has two columns in a row
    with QUADS       w w c q q b d    where Triton gives a lane four in a row (mma of 8.x and 12.x, behind a join)

Codes b, c of both halves are decoded together, by one multiplication (`nvfp4_blocks.py`), to two bf16, their value
* 2^-126; a scale goes on as bf16 too, times 2^110. Both and their product are exact: two significant bits times four.

There is no `tl.arange` here and nothing is broadcast to other lanes: Triton moves the operand's layout up to a load
only through operations that leave each number in its lane (3.6 and 3.7), and would else send the decoded weights
through shared memory a second time.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build
from firmtoken.runtime.kernels.nvfp4_blocks import EVEN_FACTOR, EVEN_MASK, ODD_FACTOR, ODD_MASK

ORDERED_COLUMNS = 128
"""Of x and w: a step of the product."""
STEP = tl.constexpr(ORDERED_COLUMNS)
ORDERED_GROUPS = 32
ORDER_WARPS = 4
PAIR_FIELDS = tl.constexpr(-0x7E3F7E40)  # 0x81C081C0: what a code's bits are in each half
SCALE_FIELDS = tl.constexpr(-0x78100000)  # 0x87F00000: e4m3, sign extended, in a fp32
CODE_SHIFT = tl.constexpr(2.0**110)
"""On its scale: a code's field is the code's value * 2^-126."""
UNSHIFT = tl.constexpr(2.0**16)


@triton.jit
def multiply_tile(
    x_ptr,
    x_rows,
    codes_ptr,
    scale_ptr,
    lines,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
):
    """fp32 [OUTPUTS, ROWS]: w x^T * 2^-16 over WIDTH columns, a multiple of STEP.

    x bf16 (fp32 in tests) in operand order, its rows begin at the int32 offsets x_rows [ROWS]; w has packed codes and
    e4m3 scales as bytes, of which the rows `lines` [OUTPUTS] (int32) are taken. All within 2^31 numbers.
    """
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    words_ptr = codes_ptr.to(tl.pointer_type(tl.int32))
    pairs_ptr = scale_ptr.to(tl.pointer_type(tl.int16))
    words_at = (lines * (WIDTH // 8))[:, None] + tl.arange(0, STEP // 8)[None, :]
    pairs_at = (lines * (WIDTH // 32))[:, None] + tl.arange(0, STEP // 32)[None, :]
    x_at = x_rows[:, None] + tl.arange(0, STEP)[None, :]
    for start in tl.range(0, WIDTH, STEP, num_stages=STAGES):
        # What a step adds is added to the pointer, once for all lanes.
        words = tl.load(words_ptr + start // 8 + words_at)
        scales = tl.load(pairs_ptr + start // 32 + pairs_at)
        x = tl.load(x_ptr + start + x_at)
        sums = tl.dot(decode_tile(words, scales, x.dtype, QUADS), tl.trans(x), sums)
    return sums


@triton.jit
def decode_tile(words, scales, kind: tl.constexpr, QUADS: tl.constexpr):
    """[OUTPUTS, STEP] in operand order of int32 [OUTPUTS, 16] and pairs of scales, int16 [OUTPUTS, 4]; times 2^-16."""
    outputs: tl.constexpr = words.shape[0]
    later = words >> 8
    pairs = tl.join(
        tl.join(fields(words, EVEN_FACTOR, EVEN_MASK), fields(later, EVEN_FACTOR, EVEN_MASK)),
        tl.join(fields(words, ODD_FACTOR, ODD_MASK), fields(later, ODD_FACTOR, ODD_MASK)),
    )  # [OUTPUTS, qqww, c, b]
    codes = tl.join(low_half(pairs, kind), low_half(pairs >> 16, kind))
    both = scales.to(tl.int32)  # the second one with its sign
    scale = tl.join(_scale(both << 24 >> 4, kind), _scale(both << 12, kind))  # [OUTPUTS, qq, w]
    weights = tl.reshape(codes, (outputs, 4, 2, 16)) * scale[:, :, :, None]
    if QUADS:
        weights = tl.permute(tl.reshape(weights, (outputs, 4, 8, 4)), (0, 2, 1, 3))
    else:
        weights = tl.permute(tl.reshape(weights, (outputs, 4, 16, 2)), (0, 2, 1, 3))
    return tl.reshape(weights, (outputs, STEP))


@triton.jit
def fields(word, FACTOR: tl.constexpr, MASK: tl.constexpr):
    """Bits of two bf16: the two codes under MASK, times 2^-126 (`decode_pair` of nvfp4_blocks.py)."""
    return ((word & MASK) * FACTOR) & PAIR_FIELDS


@triton.jit
def _scale(moved, kind: tl.constexpr):
    """An e4m3 whose lowest bit is bit 20 and whose sign goes on above it, times 2^110."""
    wide = (moved & SCALE_FIELDS).to(tl.float32, bitcast=True) * 2.0**120 * CODE_SHIFT
    # Four significant bits: what is cut off is zero.
    return low_half(wide.to(tl.int32, bitcast=True) >> 16, kind)


@triton.jit
def low_half(bits, kind: tl.constexpr):
    """The bf16 in the low half of an int32, of a type that holds it."""
    if kind == tl.bfloat16:
        return (bits & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    return (bits << 16).to(tl.float32, bitcast=True).to(kind)


@triton.jit
def column_at(place, QUADS: tl.constexpr):
    """The column that lies at a place of operand order."""
    if QUADS:
        lane = place >> 2 & 3
        code = (place >> 3 & 2) | (place >> 1 & 1)
    else:
        lane = place >> 1 & 3
        code = place >> 3 & 3
    return (place & -STEP) | lane << 5 | (place >> 5 & 3) << 3 | (place & 1) << 2 | code


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("num_groups",))
def order_columns(x_ptr, ordered_ptr, num_groups, GROUPS: tl.constexpr, QUADS: tl.constexpr):
    """Groups of STEP columns of x in operand order: read and written as they lie, put in order in between."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * STEP + tl.arange(0, STEP)[None, :]
    there = (group < num_groups)[:, None]
    x = tl.load(x_ptr + at, mask=there)
    if QUADS:
        ordered = tl.permute(tl.reshape(x, (GROUPS, 4, 4, 2, 2, 2)), (0, 2, 4, 1, 5, 3))
    else:
        ordered = tl.permute(tl.reshape(x, (GROUPS, 4, 4, 2, 4)), (0, 2, 4, 1, 3))
    tl.store(ordered_ptr + at, tl.reshape(ordered, (GROUPS, STEP)), mask=there)


def order_build(pointer: str, size: int, *, quads: int) -> Build:
    """What puts `size` numbers in operand order."""
    return Build(
        name="operand order",
        function=order_columns,
        arguments={"x_ptr": pointer, "ordered_ptr": pointer, "num_groups": "i32"},
        constants={"GROUPS": ORDERED_GROUPS, "QUADS": bool(quads)},
        num_warps=ORDER_WARPS,
        grid=(-(-size // (ORDERED_GROUPS * ORDERED_COLUMNS)),),
    )
