"""Expert slots: an arena of equal slots as bytes and as typed tensors, and a range of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from firmtoken.compiler.plan import SlotPart

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "u8": torch.uint8,
    "fp8": torch.float8_e4m3fn,
}
JOINED = ("gate", "up")
"""Parts that are adjacent in fp32 and bf16 slots, so that one product does both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertArena:
    """All slots of a device: their bytes and, per part, one typed view over all of them. Owns nothing."""

    slots: torch.Tensor
    """uint8 [S, slot_bytes]"""
    parts: Mapping[str, torch.Tensor]
    """Part name -> [S, *shape]; `gate_up` [S, 2I, H] where both halves are adjacent."""
    matrices: Mapping[str, tuple[torch.Tensor, ...]]
    """The same by slot, taken apart once: indexing a tensor costs as much as a small product."""


def make_arena(slots: torch.Tensor, layout: tuple[SlotPart, ...]) -> ExpertArena:
    """Views of `slots` (uint8 [S, slot_bytes]) in the plan's layout."""
    parts = {part.name: typed_view(slots, part) for part in layout}
    first, second = (next(part for part in layout if part.name == name) for name in JOINED)
    if first.dtype in ("fp32", "bf16") and second.offset == first.offset + first.bytes:
        both = SlotPart(
            name="gate_up",
            dtype=first.dtype,
            shape=(first.shape[0] + second.shape[0], first.shape[1]),
            offset=first.offset,
            bytes=first.bytes + second.bytes,
        )
        parts["gate_up"] = typed_view(slots, both)
    matrices = {name: view.unbind(0) for name, view in parts.items()}
    return ExpertArena(slots=slots, parts=parts, matrices=matrices)


def typed_view(slots: torch.Tensor, part: SlotPart) -> torch.Tensor:
    """One part of all slots, [S, *shape], sharing their bytes."""
    flat = slots[:, part.offset : part.offset + part.bytes].view(DTYPES[part.dtype])
    return flat.view(slots.shape[0], *part.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSlots:
    """Slots `first` to `first + count - 1` of an arena: a layer's range, staging, or overflow."""

    first: int
    count: int
    arena: ExpertArena
