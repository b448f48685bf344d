"""`ft explain`: why the plan is what it is."""

from collections.abc import Sequence

from firmtoken.compiler.explain import explain
from firmtoken.compiler.reasons import UnknownPath
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import WRONG


def explain_plan(argument: str, path: str | None, overrides: Sequence[str]) -> int:
    """Print the reasons for one path of the plan, or for all of it."""
    plan = compile_argument(argument, overrides).plan
    try:
        text = explain(plan, path or "")
    except UnknownPath as error:
        raise Failure(error.message, exit_code=WRONG, hint=error.hint) from error
    print(text.rstrip("\n"))
    return 0
