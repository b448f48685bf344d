"""What was shown of kernels sets the labels of a plan's rows; no choice reads it, nor does the fingerprint (D14)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.plan import Plan

COMPILED = "compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """A kernel, as its source is now, was compiled for a capability, and what it takes fits."""

    op: str
    kernel: str
    constants: Mapping[str, int | float | str]
    """All of a plan's row."""
    capability: str
    triton: str
    """The version that compiled it: it counts for no other."""


def label_kernels(plan: Plan, evidence: Sequence[CompiledKernel]) -> Plan:
    """The same plan, with `compiled` at the rows that were, for this capability and the target's Triton."""
    gpu, software = plan.hardware["gpu"], plan.hardware["software"]
    if not isinstance(gpu, Mapping) or not isinstance(software, Mapping):
        return plan
    shown = [
        (found.op, found.kernel, found.constants)
        for found in evidence
        if (found.capability, found.triton) == (gpu["compute_capability"], software["triton"])
    ]

    def labelled(row: KernelChoice) -> KernelChoice:
        if row.evidence == "documented" and (row.op, row.kernel, row.constants) in shown:
            return replace(row, evidence=COMPILED)
        return row

    return replace(plan, kernels=tuple(map(labelled, plan.kernels)))
