"""Bytes of a tensor in a format, scales included (facts/models.md 3.2)."""

from math import prod

ALIGN = 256
"""Every place begins at a multiple of it."""
NVFP4_BLOCK = 16
SCALAR_BYTES = 4
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp8": 1, "int32": 4, "int64": 8, "u8": 1}


def align_up(size: int, align: int = ALIGN) -> int:
    """The next multiple of `align`."""
    return -(-size // align) * align


def tensor_bytes(shape: tuple[int, ...], format_name: str) -> int:
    """fp32, bf16: elements; fp8: plus one fp32 scale; nvfp4: half a byte, an e4m3 scale per 16, one fp32 global."""
    elements = prod(shape)
    if format_name == "nvfp4":
        return elements // 2 + elements // NVFP4_BLOCK + SCALAR_BYTES
    scale = SCALAR_BYTES if format_name == "fp8" else 0
    return elements * ELEMENT_BYTES[format_name] + scale
