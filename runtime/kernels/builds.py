"""What a Triton source is compiled to, as data, so that it can be compiled for a card that is not here (no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any  # Any: a Triton function has no type that a reader of stubs would know

Constants = Mapping[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One compiled form of a Triton function."""

    name: str
    """What tells it from the others of its kernel: `2 rows`."""
    function: Any
    arguments: Mapping[str, str]
    """Type of each argument that is not a constant, in order: `*bf16`, `i32`, `fp32`. Pointers are 16-byte aligned."""
    constants: Constants
    num_warps: int
    grid: tuple[int, ...]
    """Programs of the largest launch of the plan."""
