"""What `verify` finds wrong with a plan."""

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.verify import verify


def faults(plan: Plan) -> tuple[str, ...]:
    """All of it; empty where the plan holds."""
    try:
        verify(plan)
    except PlanRefused as refused:
        return refused.faults
    return ()
