"""Operands of a launch as a kernel that is compiled for them sees them: types and sizes, without rows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """A weight, or an activation of a launch."""

    dtype: str
    shape: tuple[int, ...]
    """Of a weight; of an activation without its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForm:
    """One set of operands. Those whose shape its constants give (pages, states, expert slots) are not named."""

    operands: dict[str, Operand]

    def __str__(self) -> str:
        """`x bf16[2048], w fp8[9216, 2048]`: two that read the same are the same."""
        return ", ".join(
            f"{name} {operand.dtype}{list(operand.shape)}"
            for name, operand in self.operands.items()
        )
