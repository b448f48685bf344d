"""Philox4x32-10: the uniform number that a (seed, position) stands for, as Triton's `tl.rand(seed, position)`."""

import struct

ROUNDS = 10
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
SCALE = 4.6566127342e-10
"""A little below 2^-31, so that the largest integer still gives a number below 1 in fp32."""

Counter = tuple[int, int, int, int]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), an exact fp32 value; seed has 64 bits, position too."""
    counter = (position & MASK, position >> 32 & MASK, 0, 0)
    word = philox(counter, (seed & MASK, seed >> 32 & MASK))[0]
    signed = word - (word >> 31 << 32)
    magnitude = -signed - 1 if signed < 0 else signed
    return to_fp32(to_fp32(magnitude) * to_fp32(SCALE))


def philox(counter: Counter, key: tuple[int, int]) -> Counter:
    """Four random 32-bit words of a 128-bit counter and a 64-bit key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left = MULTIPLIERS[1] * c2
        right = MULTIPLIERS[0] * c0
        c0, c1 = (left >> 32) ^ c1 ^ k0, left & MASK
        c2, c3 = (right >> 32) ^ c3 ^ k1, right & MASK
        k0, k1 = k0 + KEY_STEPS[0] & MASK, k1 + KEY_STEPS[1] & MASK
    return c0, c1, c2, c3


def to_fp32(number: float) -> float:
    """Rounded to the nearest fp32 value."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
