"""What was shown of kernels sets the labels of a plan's rows; no choice reads it, nor does the fingerprint (D14)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.launch_forms import launch_forms, most_rows
from firmtoken.compiler.plan import Plan

COMPILED = "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """A kernel, as its source is now, was compiled for a capability, and what it takes fits."""

    op: str
    kernel: str
    format: str
    constants: Mapping[str, int | float | str]
    """All of a plan's row."""
    forms: frozenset[str]
    """Operands of its launches (`launch_forms`)."""
    rows: int
    """Of its largest launch."""
    capability: str
    triton: str
    """The version that compiled it: it counts for no other."""


def label_kernels(plan: Plan, evidence: Sequence[CompiledKernel]) -> Plan:
    """The same plan, with `compiled` at the rows that were, for this capability and the target's Triton."""
    gpu, software = plan.hardware["gpu"], plan.hardware["software"]
    if not isinstance(gpu, Mapping) or not isinstance(software, Mapping):
        return plan
    shown = [
        found
        for found in evidence
        if (found.capability, found.triton) == (gpu["compute_capability"], software["triton"])
    ]

    def labelled(row: KernelChoice) -> KernelChoice:
        if row.evidence == "documented" and any(_covers(found, plan, row) for found in shown):
            return replace(row, evidence=COMPILED)
        return row

    return replace(plan, kernels=tuple(map(labelled, plan.kernels)))


def _covers(found: CompiledKernel, plan: Plan, row: KernelChoice) -> bool:
    """Whether all that this row launches was compiled."""
    if (found.op, found.kernel, found.format) != (row.op, row.kernel, row.format):
        return False
    return (
        found.constants == row.constants
        and most_rows(plan, row) <= found.rows
        and {str(form) for form in launch_forms(plan, row)} <= found.forms
    )
