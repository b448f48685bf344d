"""Known hazards: under which versions, capabilities and sizes a kernel must not be used, or a plan be warned of.

`hazards.yaml` is written in the part of YAML that is JSON too, so reading it costs a millisecond. A hazard concerns the
kernels whose cards name it, or every plan. `unknown` says how a version counts that the profile does not give: `holds`
where it forbids a kernel that may hang or corrupt in silence (H-02 and H-03 forbid the kernel of H-01), `absent` where
a bad version fails aloud, and for warnings, which every profile without versions would get.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from firmtoken.compiler.conditions import BadCondition, Term, parse_condition
from firmtoken.compiler.situation import FIELDS, Situation

HAZARDS = Path(__file__).parent / "hazards.yaml"

Act = Literal["forbid", "cap", "warn", "environment"]
Quantity = Literal["prefill_chunk"]
Text = Annotated[str, msgspec.Meta(min_length=1)]


class BadHazards(Exception):
    """A file that is no list of hazards."""


class HazardRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hazard as the file has it."""

    id: Annotated[str, msgspec.Meta(pattern="^H-[0-9]{2}[a-z]?$")]
    act: Act
    concerns: Literal["kernel", "plan"] = "kernel"
    when: Annotated[tuple[dict[str, str], ...], msgspec.Meta(min_length=1)]
    unknown: Literal["absent", "holds"] = "absent"
    effect: Text
    alternative: Text
    source: Text
    caps: dict[Quantity, Annotated[int, msgspec.Meta(ge=1)]] = {}
    environment: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One hazard."""

    id: str
    act: str
    """`forbid` a kernel or a plan, `cap` a size, `warn`, or set `environment`."""
    concerns: str
    """`kernel`: those whose cards name it. `plan`: every plan for a GPU."""
    when: tuple[tuple[Term, ...], ...]
    """Alternatives: all terms of one of them must hold. One without terms holds on every GPU."""
    unknown: str
    """How a subject counts that the profile does not give: `holds` or `absent`."""
    effect: str
    """What happens, without the condition."""
    alternative: str
    source: str
    caps: Mapping[Quantity, int]
    """Sizes it limits."""
    environment: Mapping[str, str]
    """Variables that keep it away; `{capability}` stands for the device's own."""


@lru_cache(maxsize=1)
def load_hazards() -> tuple[Hazard, ...]:
    """All hazards, in the file's order."""
    return read_hazards(HAZARDS.read_bytes())


def read_hazards(written: bytes) -> tuple[Hazard, ...]:
    """The hazards of a file; raises `BadHazards` with the row and what is wrong with it."""
    try:
        rows = msgspec.json.decode(written, type=tuple[HazardRow, ...])
    except msgspec.DecodeError as error:
        raise BadHazards(str(error)) from error
    ids = [row.id for row in rows]
    if twice := [row_id for row_id in ids if ids.count(row_id) > 1]:
        raise BadHazards(f"`{twice[0]}` is there twice")
    return tuple(_hazard(row) for row in rows)


def find_hazard(hazard_id: str) -> Hazard:
    """The hazard of this id; raises `KeyError` for one that a card invents."""
    for hazard in load_hazards():
        if hazard.id == hazard_id:
            return hazard
    raise KeyError(hazard_id)


def holds(hazard: Hazard, situation: Situation) -> bool:
    """Whether the hazard exists there."""
    return _matching(hazard, situation) is not None


def condition(hazard: Hazard, situation: Situation) -> str:
    """What makes it hold there: `compute capability 8.9, torch before 2.12`; nothing if it holds on every GPU."""
    terms = _matching(hazard, situation)
    assert terms is not None, "the hazard holds"
    return ", ".join(_worded(term, situation) for term in terms)


def blamed_field(hazard: Hazard, situation: Situation) -> str:
    """The profile's field that the condition names last: the one to change."""
    terms = _matching(hazard, situation)
    return FIELDS[terms[-1].subject] if terms else "hardware.gpu"


def hazards_with_cap(quantity: Quantity, situation: Situation) -> tuple[tuple[Hazard, int], ...]:
    """Hazards that limit a size there, with the limit."""
    return tuple(
        (hazard, hazard.caps[quantity])
        for hazard in load_hazards()
        if quantity in hazard.caps and holds(hazard, situation)
    )


def _hazard(row: HazardRow) -> Hazard:
    wanted = {"cap": "caps", "environment": "environment"}.get(row.act)
    effects = {"caps": row.caps, "environment": row.environment}
    given = {name for name, effect in effects.items() if effect}
    if given != ({wanted} if wanted else set()):
        raise BadHazards(f"`{row.id}`: `act: {row.act}` goes with {wanted or 'no other effect'}")
    if row.act == "cap" and row.concerns == "kernel":
        raise BadHazards(f"`{row.id}`: a size is capped for the plan, not for a kernel")
    try:
        when = tuple(parse_condition(written) for written in row.when)
    except BadCondition as error:
        raise BadHazards(f"`{row.id}`: {error}") from error
    return Hazard(
        id=row.id,
        act=row.act,
        concerns=row.concerns,
        when=when,
        unknown=row.unknown,
        effect=row.effect,
        alternative=row.alternative,
        source=row.source,
        caps=row.caps,
        environment=row.environment,
    )


def _matching(hazard: Hazard, situation: Situation) -> tuple[Term, ...] | None:
    if not situation.found:
        return None
    for terms in hazard.when:
        if all(_met(hazard, term, situation) for term in terms):
            return terms
    return None


def _met(hazard: Hazard, term: Term, situation: Situation) -> bool:
    found = situation.found[term.subject]
    return hazard.unknown == "holds" if found is None else term.meets(found)


def _worded(term: Term, situation: Situation) -> str:
    if situation.found[term.subject] is None:
        return f"{term} unless `{FIELDS[term.subject]}` says otherwise"
    return str(term)
