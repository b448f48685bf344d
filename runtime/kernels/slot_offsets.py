"""Where the parts of an NVFP4 expert slot lie, for kernels that take the address of a slot."""

from functools import lru_cache

from firmtoken.compiler.expert_slots import slot_parts

CODES_ALIGN = 8
"""Kernels load the sixteen codes of a block at once."""
DOWN_GLOBAL_BYTES = 8
"""The global scale of down is the third fp32 of a slot's `globals`."""


@lru_cache
def slot_offsets(hidden_size: int, expert_width: int) -> dict[str, int]:
    """Byte offset of each part. Gate and up are joined, as are their scales: one matrix [2I,H]."""
    parts = {part.name: part for part in slot_parts("nvfp4", hidden_size, expert_width)}
    for gate, up in (("gate", "up"), ("gate_scale", "up_scale")):
        assert parts[up].offset == parts[gate].offset + parts[gate].bytes
    assert parts["gate"].offset == 0 and parts["down"].offset % CODES_ALIGN == 0
    return {name: part.offset for name, part in parts.items()}
