"""`ft check`: is each profile valid, does it compile, does its plan hold."""

from collections.abc import Sequence

from firmtoken.compiler.explain import context_line, planned_note
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure, tell


def check_profiles(arguments: Sequence[str], overrides: Sequence[str]) -> int:
    """A line for each good one on stdout, warnings below; all faults of the others on stderr; the largest exit code."""
    worst = 0
    for argument in arguments:
        try:
            compiled = compile_argument(argument, overrides)
        except Failure as failure:
            tell(failure)
            worst = max(worst, failure.exit_code)
        else:
            print(f"{compiled.loaded.name}: ok, {context_line(compiled.plan)}")
            if note := planned_note(compiled.plan):
                print(f"  {note}")
            for warning in compiled.plan.warnings:
                print(f"  warning: {warning.message}\n  hint: {warning.hint}")
    return worst
