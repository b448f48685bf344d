"""Which kernel runs which op, and why not the others (D13)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedKernel:
    """A kernel that was not chosen, and why."""

    kernel: str
    because: str
    usable: bool
    """It would run here: another one was preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """Which kernel runs an op in a phase, for launches of `sizes` rows."""

    op: str
    phase: str
    """`decode` or `prefill`; `extend` uses the prefill rows."""
    format: str
    """Format of the operand that decides (`fp32`, `bf16`, `nvfp4`, ...)."""
    sizes: tuple[int, int]
    kernel: str
    entry: str
    """`module:function`, loaded by the runtime; empty for a card that is only planned."""
    constants: dict[str, int | float | str]
    """Keyword arguments fixed for every launch: geometry, eps, tile sizes."""
    because: str
    evidence: str
    """`measured ...`, `compiled` or `documented` (D14)."""
    status: str
    """`ready`, or `planned`: `ft run` refuses it."""
    ignores_stream: bool
    respects_holds: bool
    in_place: tuple[tuple[str, str], ...]
    """Pairs (input operand, output operand) that may share bytes."""
    workspace: str
    """Backend whose workspace it shares: the ledger line `workspace.NAME`; empty = none."""
    workspace_bytes: int
    local_bytes: int
    """What a thread spills."""
    rejected: tuple[RejectedKernel, ...]
