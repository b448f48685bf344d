"""What hazards do to a plan beyond its kernels: refusals, warnings and variables for the engine."""

from collections.abc import Iterator, Sequence

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.errors import Refusal
from firmtoken.compiler.hazards import (
    Hazard,
    blamed_field,
    condition,
    hazards_with_cap,
    holds,
    load_hazards,
)
from firmtoken.compiler.plan import PlanWarning
from firmtoken.compiler.situation import Situation
from firmtoken.schema.profile import Profile


def plan_refusals(situation: Situation) -> Iterator[Refusal]:
    """Hazards under which no plan can run there."""
    for hazard in load_hazards():
        if hazard.act == "forbid" and hazard.concerns == "plan" and holds(hazard, situation):
            yield Refusal(
                field=blamed_field(hazard, situation),
                message=said(hazard, situation),
                hint=hazard.alternative,
                code="hazard",
            )


def hazard_warnings(
    profile: Profile, chosen: Sequence[KernelCard], situation: Situation
) -> Iterator[PlanWarning]:
    """Warnings of the plan and of the kernels in it, and of a size that was asked for above a cap."""
    for hazard in _concerned("warn", chosen, situation):
        yield PlanWarning(code="hazard", message=said(hazard, situation), hint=hazard.alternative)
    asked = profile.schedule.prefill_chunk
    for hazard, cap in hazards_with_cap("prefill_chunk", situation):
        if asked != "auto" and asked > cap:
            yield PlanWarning(
                code="hazard",
                message=f"`schedule.prefill_chunk` asks for {asked:,} tokens, `auto` stops at {cap:,}: "
                f"{said(hazard, situation)}",
                hint=hazard.alternative,
            )


def hazard_environment(chosen: Sequence[KernelCard], situation: Situation) -> dict[str, str]:
    """Variables that keep hazards of the plan and of the kernels in it away."""
    capability = situation.found.get("capability")
    dotted = ".".join(map(str, capability)) if isinstance(capability, tuple) else ""
    return {
        name: value.replace("{capability}", dotted)
        for hazard in _concerned("environment", chosen, situation)
        for name, value in hazard.environment.items()
    }


def said(hazard: Hazard, situation: Situation) -> str:
    """The id, the condition that holds, and what happens."""
    words = condition(hazard, situation)
    return f"{hazard.id} ({words}): {hazard.effect}" if words else f"{hazard.id}: {hazard.effect}"


def _concerned(act: str, chosen: Sequence[KernelCard], situation: Situation) -> Iterator[Hazard]:
    named = {hazard_id for card in chosen for hazard_id in card.hazards}
    for hazard in load_hazards():
        concerned = hazard.concerns == "plan" or hazard.id in named
        if hazard.act == act and concerned and holds(hazard, situation):
            yield hazard
