"""A profile from the command line, compiled; every refusal is told with file, line and column."""

from collections.abc import Sequence
from dataclasses import dataclass

from firmtoken.compiler.errors import PlanError, PlanRefused
from firmtoken.compiler.evidence import label_kernels
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.evidence import compiled_kernels, evidence_folder
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.dialects.registry import UnknownDialect, find_dialect
from firmtoken.runtime.exit_codes import REFUSED, WRONG
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.diagnostic import ProfileError
from firmtoken.schema.load import LoadedProfile, load_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A profile and its plan."""

    loaded: LoadedProfile
    plan: Plan


def compile_argument(argument: str, overrides: Sequence[str]) -> Compiled:
    """The plan of a profile file or name; raises `Failure`."""
    try:
        loaded = load_profile(argument, overrides)
    except ProfileError as error:
        raise Failure(str(error), exit_code=WRONG) from error
    _require_dialect(loaded)
    try:
        plan = compile_profile(loaded.profile, CARDS)
    except PlanError as error:
        found = (
            str(loaded.refuse(refusal.field, refusal.message, refusal.hint, refusal.code))
            for refusal in error.refusals
        )
        raise Failure("\n".join(found), exit_code=error.exit_code) from error
    except PlanRefused as error:
        faults = "\n".join(f"{loaded.name}: the plan is unsound: {fault}" for fault in error.faults)
        raise Failure(
            faults, exit_code=REFUSED, hint="this is a fault of the compiler: please report it"
        ) from error
    return Compiled(loaded=loaded, plan=_labelled(plan, loaded))


def _require_dialect(loaded: LoadedProfile) -> None:
    try:
        find_dialect(loaded.profile.model.dialect)
    except UnknownDialect as error:
        refused = loaded.refuse("model.dialect", str(error), error.hint, "unknown_dialect")
        raise Failure(str(refused), exit_code=WRONG) from error


def _labelled(plan: Plan, loaded: LoadedProfile) -> Plan:
    gpu = loaded.profile.hardware.gpu
    if gpu is None:
        return plan
    return label_kernels(plan, compiled_kernels(gpu.compute_capability, evidence_folder()))
