"""Refuses a plan that this machine cannot run, or would plan otherwise (D15)."""

import os
from pathlib import Path

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.explain import context_line
from firmtoken.compiler.people import longest_resident, not_runnable
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.cli.compiled import Compiled
from firmtoken.runtime.cli.diff import differences
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.this_machine import available_bytes, lacks
from firmtoken.runtime.exit_codes import REFUSED
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.hardware import Host
from firmtoken.schema.profile import Profile

MIB = 2**20


def require_runnable(compiled: Compiled) -> None:
    """Raise `Failure` for a plan that no machine can run yet; what it would be, `ft plan` says."""
    if note := not_runnable(compiled.plan):
        raise Failure(
            f"the plan `{compiled.plan.profile.name}` {note}",
            exit_code=REFUSED,
            hint=_shorter(compiled)
            or "this version runs GPU plans whose experts are all resident, and CPU profiles such as"
            " `ft run tiny-cpu`",
        )


def _shorter(compiled: Compiled) -> str:
    """The longest context that runs, found by compiling it; empty if what keeps the plan from running is not that."""
    longest = longest_resident(compiled.plan)
    if longest is None or longest >= compiled.plan.context.effective:
        return ""
    profile = compiled.loaded.profile
    serving = profile.serving.model_copy(update={"context": longest})
    plan = compile_profile(profile.model_copy(update={"serving": serving}), CARDS)
    return "" if not_runnable(plan) else f"`--set serving.context={longest}` runs"


def require_fit(compiled: Compiled, *, root: Path = Path("/")) -> None:
    """Raise `Failure` with everything that is in the way, and with what mends it."""
    if found := tuple(lacks(compiled.plan, root=root)):
        *above, last = found
        told = (f"{lack.message}\n  hint: {lack.hint}" for lack in above)
        raise Failure("\n".join((*told, last.message)), exit_code=REFUSED, hint=last.hint)
    if compiled.plan.device.kind == "cpu":
        _require_same_choices(compiled, root)


def as_found(compiled: Compiled, root: Path) -> Profile:
    """The profile with the smaller of its amounts and this machine's."""
    hardware = compiled.loaded.profile.hardware
    # RAM plays both sides on a CPU device (D9): the host has what the arena leaves, in whole MiB.
    left = (available_bytes(root) - compiled.plan.memory.device.total) // MIB * MIB
    memory, pinnable = min(hardware.host.memory, left), hardware.host.pinnable
    host = hardware.host.model_copy(
        update={
            "memory": memory,
            "pinnable": pinnable if pinnable == "auto" else min(pinnable, memory),
            "cores": min(hardware.host.cores, len(os.sched_getaffinity(0))),
        }
    )
    return compiled.loaded.profile.model_copy(
        update={"hardware": hardware.model_copy(update={"host": host})}
    )


def _require_same_choices(compiled: Compiled, root: Path) -> None:
    here = as_found(compiled, root)
    asked, host = compiled.loaded.profile.hardware.host, here.hardware.host
    if host == asked:
        return
    less = (
        f"{host.memory // MIB} MiB of host memory are free beside the arena"
        f" of `{compiled.plan.profile.name}`"
    )
    try:
        plan = compile_profile(here, CARDS)
    except PlanError as error:
        raise Failure(
            f"{less}, and with them there is none: {error}",
            exit_code=REFUSED,
            hint="; ".join(dict.fromkeys(refusal.hint for refusal in error.refusals)),
        ) from error
    if lines := list(differences(compiled.plan, plan)):
        raise Failure(
            "\n".join((f"{less}, and with them it is another:", *lines, context_line(plan))),
            exit_code=REFUSED,
            hint="this runs that one: " + _settings(asked, host),
        )


def _settings(asked: Host, found: Host) -> str:
    amounts = {
        "memory": (asked.memory, found.memory),
        "pinnable": (asked.pinnable, found.pinnable),
    }
    return " ".join(
        f"--set hardware.host.{name}={here // MIB}MiB"
        for name, (wish, here) in amounts.items()
        if here != wish and here != "auto"
    )
