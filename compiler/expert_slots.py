"""The layout of an expert slot: which tensors lie where in its bytes."""

from firmtoken.compiler.plan import SlotPart
from firmtoken.compiler.tensor_bytes import NVFP4_BLOCK

SLOT_ALIGN = 256
BYTES = {"fp32": 4, "bf16": 2}


def slot_parts(format_name: str, hidden_size: int, width: int) -> tuple[SlotPart, ...]:
    """Parts of a slot for one expert of `width` x `hidden_size`, in order.

    fp32, bf16: `gate` and `up` [width, hidden], `down` [hidden, width].
    nvfp4: the same as packed nibbles uint8 [N, K/2], their block scales e4m3 [N, K/16] as the checkpoint has them
    (facts/models.md 3.2), and `globals` fp32 [3] for gate, up, down: each half keeps its own.
    """
    matrices = (
        ("gate", width, hidden_size),
        ("up", width, hidden_size),
        ("down", hidden_size, width),
    )
    shapes: list[tuple[str, str, tuple[int, ...], int]]
    if format_name in BYTES:
        shapes = [
            (name, format_name, (n, k), n * k * BYTES[format_name]) for name, n, k in matrices
        ]
    else:
        assert format_name == "nvfp4"
        block = NVFP4_BLOCK
        shapes = [(name, "u8", (n, k // 2), n * k // 2) for name, n, k in matrices]
        shapes += [
            (f"{name}_scale", "fp8", (n, k // block), n * k // block) for name, n, k in matrices
        ]
        shapes.append(("globals", "fp32", (3,), 12))
    parts = []
    offset = 0
    for name, dtype, shape, num_bytes in shapes:
        parts.append(SlotPart(name=name, dtype=dtype, shape=shape, offset=offset, bytes=num_bytes))
        offset += num_bytes
    return tuple(parts)


def slot_bytes(parts: tuple[SlotPart, ...]) -> int:
    """Bytes of a slot, padded to `SLOT_ALIGN`."""
    end = parts[-1].offset + parts[-1].bytes
    return -(-end // SLOT_ALIGN) * SLOT_ALIGN
