"""What a Triton source is compiled to, as data, so that it can be compiled for a card that is not here (no torch)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any  # Any: a Triton function has no type that a reader of stubs would know

from firmtoken.compiler.operands import Operand

Constants = Mapping[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a plan launches a kernel with, beside its constants: `builds(launch, **constants)` of a card."""

    format: str
    """Of the deciding operand."""
    num_rows: int
    """Of the largest launch."""
    operands: Mapping[str, Operand]

    def columns(self, name: str) -> int:
        """Of an operand."""
        return self.operands[name].shape[-1]

    def outputs(self, name: str) -> int:
        """Rows of a weight."""
        return self.operands[name].shape[0]

    def pointer(self, name: str) -> str:
        """Type of an operand's pointer; dtypes of activations are named as Triton names them."""
        return f"*{self.operands[name].dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One compiled form of a Triton function."""

    name: str
    """What tells it from the others of its kernel: `2 rows`."""
    function: Any
    arguments: Mapping[str, str]
    """Type of each argument that is not a constant, in order: `*bf16`, `i32`, `fp32`.

    Pointers are 16-byte aligned: whatever a launcher hands over, the plan's places and arrays of a workspace alike,
    begins at a multiple of 16. Triton would compile another form for others, in the midst of serving. Integers are
    not specialised.
    """
    constants: Constants
    num_warps: int
    grid: tuple[int, ...]
    """Programs of the largest launch of the plan."""


def merged(builds: Iterable[Build]) -> tuple[Build, ...]:
    """Each form once, with the largest grid: launches of many weights are one form."""
    forms: dict[tuple[object, ...], Build] = {}
    for build in builds:
        key = (
            build.function,
            *build.arguments.items(),
            *build.constants.items(),
            build.num_warps,
        )
        seen = forms.get(key, build)
        grid = tuple(map(max, seen.grid, build.grid))
        forms[key] = replace(seen, grid=grid)
    return tuple(forms.values())


def row_name(rows: int) -> str:
    """`1 row`, `2 rows`"""
    return f"{rows} row" + ("s" if rows > 1 else "")
