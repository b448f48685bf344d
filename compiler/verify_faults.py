"""The part of `verify` about faults: a plan that is served has none; a test's plan has such as can happen."""

from collections.abc import Iterator

from firmtoken.compiler.faults import Fault
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.unroll import unroll


def check_no_faults(plan: Plan) -> Iterator[str]:
    """Nobody is served by a plan that lets something go wrong."""
    if plan.faults:
        yield f"the plan lets {len(plan.faults)} things go wrong: `faults` are for tests"


def check_faults(plan: Plan) -> Iterator[str]:
    """Each can happen."""
    for number, fault in enumerate(plan.faults):
        for wrong in _check_fault(fault, plan):
            yield f"fault {number}: {wrong}"


def _check_fault(fault: Fault, plan: Plan) -> Iterator[str]:
    if not any(fault.meets(step, name) for name, step in _launches(plan)):
        where = fault.program or "any program"
        where += "" if fault.layer is None else f", layer {fault.layer}"
        yield f"no `{fault.op}` is launched in {where}"
    if fault.step < 1:
        yield f"launches are counted from 1, not from {fault.step}"
    if fault.seconds < 0:
        yield f"nothing takes {fault.seconds} s"


def _launches(plan: Plan) -> Iterator[tuple[str, BoundStep]]:
    for name, program in plan.programs.named():
        for item in unroll(program, plan.model.layer_kinds):
            if isinstance(item, BoundStep):
                yield name, item
