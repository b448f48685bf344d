"""`Fault`: what a test's plan lets go wrong, where and when; a compiled plan has none, and `verify` says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from firmtoken.compiler.program import BoundStep

FaultKind = Literal["stall", "freeze", "die", "oom", "error", "slow", "corrupt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Happens once, at one launch; an engine that comes back does not meet it again."""

    kind: FaultKind
    """`stall` spins for ever, `freeze` too and lets no other thread run, `die` is killed, `oom` asks for memory that
    is not there, `error` raises, `slow` sleeps first, `corrupt` turns the floats that were written to NaN."""
    op: str
    program: str | None = None
    """None = any."""
    layer: int | None = None
    """None = any."""
    step: int = 1
    """The N-th launch of that op, program and layer since the engine is ready."""
    seconds: float = 0.0
    """How long `slow` sleeps."""

    def meets(self, step: BoundStep, program: str) -> bool:
        """Whether it counts this launch."""
        return (
            self.op == step.step.op
            and self.program in (None, program)
            and self.layer in (None, step.at.get("l"))
        )


def faults_at(
    faults: Sequence[Fault], step: BoundStep, program: str
) -> tuple[tuple[int, Fault], ...]:
    """Those that count this launch, with their numbers in the plan."""
    return tuple(
        (number, fault) for number, fault in enumerate(faults) if fault.meets(step, program)
    )
