"""Norm and rotation of one head's columns and the write of keys and values to their pages: shared Triton functions.

Angles as transformers computes them, rounding included: frequency and angle in fp32, from an fp64 power. They reach
10^5 radians, so quarter turns are taken off in fp64; sine and cosine of what is left are polynomials (Cephes `sinf`,
`cosf`), the same on every card, and need no local memory, which the vendor's functions do.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

QUARTER_TURNS = tl.constexpr(0.6366197723675814)
QUARTER = tl.constexpr(1.5707963267948966)
LARGEST_CODE = tl.constexpr(448.0)
"""Of e4m3fn."""


@triton.jit
def rotate_head(x_ptr, norm_ptr, scale, cosine, sine, WIDTH: tl.constexpr, ROTARY: tl.constexpr):
    """fp32 [WIDTH]: x * scale * norm, then its first ROTARY columns rotated, column i with i + ROTARY / 2."""
    HALF: tl.constexpr = ROTARY // 2
    column = tl.arange(0, WIDTH)
    rotated = column < ROTARY
    partner = tl.where(rotated, tl.where(column < HALF, column + HALF, column - HALF), column)
    own = tl.load(x_ptr + column).to(tl.float32) * scale * tl.load(norm_ptr + column).to(tl.float32)
    other = (
        tl.load(x_ptr + partner).to(tl.float32) * scale * tl.load(norm_ptr + partner).to(tl.float32)
    )
    turned = tl.where(column < HALF, own * cosine - other * sine, own * cosine + other * sine)
    return tl.where(rotated, turned, own)


@triton.jit
def angles(position, LOG2_THETA: tl.constexpr, WIDTH: tl.constexpr, ROTARY: tl.constexpr):
    """Cosine and sine for each of WIDTH columns, fp32."""
    pair = tl.arange(0, WIDTH) % (ROTARY // 2)
    power = tl.exp2(pair.to(tl.float64) * (2.0 / ROTARY) * LOG2_THETA).to(tl.float32)
    return _cosine_sine(position.to(tl.float32) * tl.div_rn(1.0, power))


@triton.jit
def _cosine_sine(angle):
    """Of an fp32 angle in radians, |angle| < 2^30."""
    quarters = tl.floor(angle.to(tl.float64) * QUARTER_TURNS + 0.5)
    x = (angle.to(tl.float64) - quarters * QUARTER).to(tl.float32)
    quadrant = quarters.to(tl.int32) & 3
    square = x * x
    sine = x + x * square * (
        -1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4)
    )
    cosine = 1.0 - 0.5 * square + square * square * (
        4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5)
    )  # fmt: skip
    odd = (quadrant & 1) == 1
    first = tl.where(odd, sine, cosine)
    second = tl.where(odd, cosine, sine)
    first = tl.where((quadrant == 1) | (quadrant == 2), -first, first)
    return first, tl.where(quadrant >= 2, -second, second)


@triton.jit
def store_token(at, x, CODED: tl.constexpr):
    """x [n] to keys or values: bf16, or the bits of e4m3fn (nearest, ties to even, at most 448)."""
    if CODED:
        tl.store(at, _encode(x))
    else:
        tl.store(at, x.to(at.dtype.element_ty))


@triton.jit
def _encode(x):
    """uint8 bits of e4m3fn of fp32. NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), LARGEST_CODE)
    size_bits = size.to(tl.int32, bitcast=True)
    # Exponent 8 of e4m3 is 127 + 1 of fp32; what lies below the three bits kept is rounded to even.
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 a code counts steps of 2^-9: fp32 rounds to even when 2^23 is added.
    small = (size * 512.0 + 8388608.0).to(tl.int32, bitcast=True) & 0xF
    code = tl.where(size < 0.015625, small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
