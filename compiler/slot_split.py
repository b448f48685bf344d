"""How expert slots are dealt out: a fixed range for each layer, staging, overflow (D8)."""

from bisect import bisect_right
from dataclasses import dataclass

from firmtoken.compiler.facts import ExpertSplit, ModelFacts

STAGING_SLOTS = 64
STAGING_SHARE = 0.04
"""Two halves of whole-layer misses may take `STAGING_SLOTS` or this share of all slots, whichever is more."""
RINGS = (128, 96)
"""Slots of a ring that moves in waves: the largest that takes no more than `STAGING_SHARE`, else the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSlots:
    """Fewer slots than staging and overflow take."""

    needed: int


def resident_split(facts: ModelFacts) -> ExpertSplit:
    """A slot for every expert and no machinery."""
    return ExpertSplit(
        slots_per_layer=(facts.experts_per_layer,) * facts.num_layers,
        staging_slots=0,
        overflow_slots=0,
        ring="none",
    )


def fill_slots(
    facts: ModelFacts, requests: int, have: int, *, waves: bool
) -> ExpertSplit | NoSlots:
    """The most cached experts that `have` slots allow, staging and overflow included.

    `waves`: whether the programs can take a layer's misses in several waves through a smaller ring.
    """
    overflow = overflow_slots(facts, requests)
    whole = _most_slots(facts, have - overflow)
    if whole is not None and (not waves or _is_small(facts, whole)):
        return _split(facts, whole, _whole_staging(facts, whole), overflow, "whole")
    for ring in RINGS if waves else ():
        slots = min(have - overflow - ring, facts.total_experts)
        fits = slots >= facts.num_layers and (ring <= STAGING_SHARE * slots or ring == RINGS[-1])
        if fits and ring < _whole_staging(facts, slots):
            return _split(facts, slots, ring, overflow, "waves")
    if whole is None:
        staging = _whole_staging(facts, facts.num_layers)
        staging = min(RINGS[-1], staging) if waves else staging
        return NoSlots(needed=facts.num_layers + overflow + staging)
    return _split(facts, whole, _whole_staging(facts, whole), overflow, "whole")


def exact_slots(facts: ModelFacts, requests: int, slots: int, *, waves: bool) -> ExpertSplit:
    """Exactly `slots` cached experts, with the staging and overflow that they need."""
    overflow = overflow_slots(facts, requests)
    whole = _whole_staging(facts, slots)
    if not waves or _is_small(facts, slots):
        return _split(facts, slots, whole, overflow, "whole")
    ring = next((ring for ring in RINGS if ring <= STAGING_SHARE * slots), RINGS[-1])
    if whole <= ring:
        return _split(facts, slots, whole, overflow, "whole")
    return _split(facts, slots, ring, overflow, "waves")


def overflow_slots(facts: ModelFacts, requests: int) -> int:
    """So that a decode step never fails for a held layer: what it can route to."""
    return min(requests * facts.experts_per_token, facts.experts_per_layer)


def _is_small(facts: ModelFacts, slots: int) -> bool:
    return _whole_staging(facts, slots) <= max(STAGING_SLOTS, STAGING_SHARE * slots)


def _whole_staging(facts: ModelFacts, slots: int) -> int:
    # Two halves, each as large as the misses of the layer with the fewest slots; never empty, so that it has a place.
    return 2 * max(1, facts.experts_per_layer - slots // facts.num_layers)


def _most_slots(facts: ModelFacts, left: int) -> int | None:
    # With n slots a layer and both halves of E - n misses, need grows with n (two layers or more). No range is empty.
    layers = facts.num_layers

    def needed(each: int) -> int:
        return layers * each + _whole_staging(facts, layers * each)

    each = bisect_right(range(facts.experts_per_layer + 1), left, key=needed) - 1
    if each < 1 or needed(each) > left:
        return None
    spare = left - _whole_staging(facts, layers * each)
    return min(spare, layers * (each + 1) - 1, facts.total_experts)


def _split(facts: ModelFacts, slots: int, staging: int, overflow: int, ring: str) -> ExpertSplit:
    return ExpertSplit(
        slots_per_layer=deal(slots, facts.num_layers),
        staging_slots=staging,
        overflow_slots=overflow,
        ring=ring,
    )


def deal(slots: int, layers: int) -> tuple[int, ...]:
    """The same for all; what is left over goes one each to layers 0, L-1, 1, L-2, ... (skew is worst at the ends)."""
    each, left = divmod(slots, layers)
    order = [
        layer for pair in zip(range(layers), reversed(range(layers)), strict=True) for layer in pair
    ]
    favoured = set(tuple(dict.fromkeys(order))[:left])
    return tuple(each + (layer in favoured) for layer in range(layers))
