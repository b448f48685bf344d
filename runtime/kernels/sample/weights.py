"""Keys, weights and the uniform number of a draw: what the Triton functions of `sample` have in common."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

STEP = tl.constexpr(2.0**40)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def key_of(x):
    """int64 in 0 .. 2^32 - 1, larger for larger fp32; both zeros have one."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    moved = tl.where(bits < 0, ~bits, bits | -0x80000000)
    return moved.to(tl.int64) & 0xFFFFFFFF


@triton.jit
def logit_of(key):
    """The fp32 of a key."""
    moved = tl.where(key >= 0x80000000, key - 0x80000000, 0xFFFFFFFF - key)
    return moved.to(tl.uint32).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, largest, temperature):
    """exp((x - largest) / temperature) in steps of 2^-40."""
    return (tl.exp2((x - largest) / temperature * LOG2_E) * STEP).to(tl.int64)


@triton.jit
def kept_weight_of(x, largest, temperature, min_p):
    """The same, 0 below min_p times the largest."""
    weight = tl.exp2((x - largest) / temperature * LOG2_E)
    return tl.where(weight >= min_p, weight * STEP, 0.0).to(tl.int64)


@triton.jit
def uniform(seed, position):
    """In [0, 1): `philox.uniform`, with all 64 bits of the position."""
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low ^ low
    word, _, _, _ = tl.philox(seed, low, high, zero, zero)
    return tl.uint_to_uniform_float(word)
