"""Refusals of the compiler.

CompileError
├── PlanError        the profile cannot be planned: does not fit, no kernel, hazard (exit 3, or 2 if contradictory)
└── PlanRefused      a finished plan does not hold what `verify` demands (our bug, or an edited plan file; exit 3)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One reason: the profile's field (dotted path), the sentence, the remedy."""

    field: str
    message: str
    hint: str
    code: str
    """`does_not_fit`, `no_kernel`, `hazard`, `contradiction`, `unknown_kernel`, `unknown_family`, ..."""


class CompileError(Exception):
    """Root of this tree."""


class PlanError(CompileError):
    """Every reason why a profile cannot be planned."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        super().__init__("; ".join(refusal.message for refusal in refusals))
        self.refusals = refusals

    @property
    def exit_code(self) -> int:
        """2 if the profile contradicts itself, else 3 (D10)."""
        wrong = {"contradiction", "unknown_kernel", "unknown_family", "unknown_op"}
        return 2 if any(refusal.code in wrong for refusal in self.refusals) else 3


class PlanRefused(CompileError):
    """Faults that `verify` found in a plan."""

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__(
            faults[0] if len(faults) == 1 else f"{faults[0]} (and {len(faults) - 1} more)"
        )
        self.faults = faults
