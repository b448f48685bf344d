"""What `ft explain` prints: the four choices, what else was open and its price, then every reason."""

import re
from collections.abc import Sequence

from firmtoken.compiler.alternatives import Choice, choice_at, four_choices
from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.explain import opening, page
from firmtoken.compiler.hazards import load_hazards
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.reasons import explain
from firmtoken.compiler.tables import paragraph
from firmtoken.schema.profile import Profile

KERNELS = "  (but of kernels: `ft explain PROFILE kernels` says why each, and why not the others)"
LEGEND = (
    "H-numbers are known hazards of kernels, drivers and systems; `compiler/hazards.yaml` has for each when it holds, "
    "what is safe, and the source"
)
HAZARD = re.compile(r"\bH-\d{2}[a-z]?\b")
HOW = "found by compiling again with that one `--set`; speeds are computed, not measured"


def explanation(profile: Profile, plan: Plan, cards: Sequence[KernelCard], path: str = "") -> str:
    """What `ft explain` prints: the four choices with their alternatives, then every reason; or those of one path."""
    if path:
        reasons = explain(plan, path)
        choice = choice_at(path, profile, plan, cards)
        if choice is None:
            return _with_legend(reasons)
        priced = ["what else was open", f"  ({HOW})", *_priced(choice)]
        return _with_legend(page([[reasons.rstrip()], priced]))
    title = [
        f"{plan.profile.name}: four choices, what else was open, and what it would change",
        f"  ({HOW})",
    ]
    choices = (_choice(choice) for choice in four_choices(profile, plan, cards))
    return _with_legend(
        page([*opening(plan), title, *choices, ["all reasons", KERNELS], [explain(plan).rstrip()]])
    )


def _with_legend(text: str) -> str:
    """The text, and below it what each hazard is that it names."""
    named = {match.group() for match in HAZARD.finditer(text)}
    hazards = [hazard for hazard in load_hazards() if hazard.id in named]
    if not hazards:
        return text
    lines = [
        line
        for hazard in hazards
        for line in paragraph(hazard.effect, first=f"  {hazard.id}  ", indent=" " * 8)
    ]
    return page([[text.rstrip()], [*paragraph(LEGEND), *lines]])


def _choice(choice: Choice) -> list[str]:
    return [
        *paragraph(f"{choice.name}: {choice.chosen}", indent="  ", first=""),
        *paragraph(f"because {choice.because}", indent="  "),
        *_priced(choice),
    ]


def _priced(choice: Choice) -> list[str]:
    lines = []
    for alternative in choice.alternatives:
        lines += [f"  --set {alternative.set}", *paragraph(alternative.price, indent="      ")]
    return lines or paragraph(f"no alternative: {choice.otherwise}", indent="  ")
