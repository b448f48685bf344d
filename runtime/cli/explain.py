"""`ft explain`: why the plan is what it is."""

from collections.abc import Sequence

from firmtoken.compiler.explanation import explanation
from firmtoken.compiler.reasons import UnknownPath
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import WRONG
from firmtoken.runtime.kernels import CARDS


def explain_plan(argument: str, path: str | None, overrides: Sequence[str]) -> int:
    """Print the reasons for one path of the plan, or for all of it, with the price of what else was open."""
    compiled = compile_argument(argument, overrides)
    try:
        text = explanation(compiled.loaded.profile, compiled.plan, CARDS, path or "")
    except UnknownPath as error:
        raise Failure(error.message, exit_code=WRONG, hint=error.hint) from error
    print(text.rstrip("\n"))
    return 0
