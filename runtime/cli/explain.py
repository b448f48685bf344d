"""`ft explain`: why the plan is what it is."""

from collections.abc import Sequence

from firmtoken.compiler.explain import explain
from firmtoken.runtime.cli.compiled import compile_argument


def explain_plan(argument: str, path: str | None, overrides: Sequence[str]) -> int:
    """Print the reasons for one path of the plan, or for all of it."""
    print(explain(compile_argument(argument, overrides).plan, path or "").rstrip("\n"))
    return 0
