"""`ft check`: is each profile valid, does it compile, does its plan hold, and do its kernels compile."""

from collections.abc import Mapping, Sequence

from firmtoken.compiler.explain import context_line
from firmtoken.compiler.people import not_runnable
from firmtoken.compiler.redundant_waits import redundant_waits
from firmtoken.runtime.cli.check_kernels import check_builds
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.cli.failure import Failure, tell


def check_profiles(
    arguments: Sequence[str],
    overrides: Sequence[str],
    *,
    kernels: bool,
    record: bool,
    environ: Mapping[str, str],
) -> int:
    """A line for each good one on stdout, warnings below; all faults of the others on stderr; the largest exit code."""
    worst = 0
    for argument in arguments:
        try:
            compiled = compile_argument(argument, overrides)
            _tell_good(compiled)
            if kernels:
                check_builds(compiled.plan, record=record, environ=environ)
        except Failure as failure:
            tell(failure)
            worst = max(worst, failure.exit_code)
    return worst


def _tell_good(compiled: Compiled) -> None:
    print(f"{compiled.loaded.name}: ok, {context_line(compiled.plan)}")
    if note := not_runnable(compiled.plan):
        print(f"  {note}")
    for wait in redundant_waits(compiled.plan):
        who = "which the first chunk needs and later ones do not" if wait.first_chunk else "in vain"
        print(f"  `{wait.step}` waits for `{wait.event}`, {who}")
    for warning in compiled.plan.warnings:
        print(f"  warning: {warning.message}\n  hint: {warning.hint}")
