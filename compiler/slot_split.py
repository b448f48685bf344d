"""How expert slots are dealt out: a fixed range for each layer, staging, overflow (D8)."""

from bisect import bisect_right
from dataclasses import dataclass

from firmtoken.compiler.facts import ExpertSplit, ModelFacts

STAGING_SLOTS = 64
STAGING_SHARE = 0.04
"""Two halves of whole-layer misses may take `STAGING_SLOTS` or this share of all slots, whichever is more."""
RING_SLOTS = 128
"""The most slots of a ring that moves a layer's misses in waves (D8: 96-128)."""
LEAST_WAVES = 2
"""The number of waves is even, so that wave `w` of every layer lies in half `w % 2`."""


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
        waves=0,
    )


def fill_slots(facts: ModelFacts, requests: int, have: int, layout: str) -> ExpertSplit | NoSlots:
    """The most cached experts that `have` slots allow, staging and overflow included."""
    left = have - overflow_slots(facts, requests)
    slots = _most_slots(facts, left) if layout == "offload" else _most_slots_in_waves(facts, left)
    if slots is not None:
        return exact_slots(facts, requests, slots, layout)
    return NoSlots(needed=_least_slots(facts, layout) + overflow_slots(facts, requests))


def exact_slots(facts: ModelFacts, requests: int, slots: int, layout: str) -> ExpertSplit:
    """Exactly `slots` cached experts, with the staging and overflow that they need."""
    misses = _misses(facts, slots)
    waves = 1 if layout == "offload" else _num_waves(misses)
    return ExpertSplit(
        slots_per_layer=deal(slots, facts.num_layers),
        staging_slots=2 * -(-misses // waves),
        overflow_slots=overflow_slots(facts, requests),
        ring="whole" if waves == 1 else "waves",
        waves=waves,
    )


def overflow_slots(facts: ModelFacts, requests: int) -> int:
    """So that a decode step never fails for a held layer: what it can route to."""
    return min(requests * facts.experts_per_token, facts.experts_per_layer)


def is_small(split: ExpertSplit) -> bool:
    """Whether two halves of whole-layer misses cost so little that waves could save nothing (D8)."""
    return split.staging_slots <= max(STAGING_SLOTS, STAGING_SHARE * sum(split.slots_per_layer))


def may_be_large(facts: ModelFacts) -> bool:
    """Whether any number of slots needs staging for which waves could pay."""
    return 2 * (facts.experts_per_layer - 1) > STAGING_SLOTS


def _misses(facts: ModelFacts, slots: int) -> int:
    # Of the layer with the fewest slots; never none, so that the staging range has a place.
    return max(1, facts.experts_per_layer - slots // facts.num_layers)


def _num_waves(misses: int) -> int:
    # The fewest with a ring of at most RING_SLOTS; equal waves leave no slot of a half unused.
    least = -(-misses // (RING_SLOTS // 2))
    return max(LEAST_WAVES, least + least % 2)


def _least_slots(facts: ModelFacts, layout: str) -> int:
    """The fewest slots that can run, staging included: not always one a layer, since fewer misses need less staging."""

    def needed(each: int) -> int:
        misses = _misses(facts, facts.num_layers * each)
        waves = 1 if layout == "offload" else _num_waves(misses)
        return facts.num_layers * each + 2 * -(-misses // waves)

    return min(map(needed, range(1, facts.experts_per_layer + 1)))


def _most_slots(facts: ModelFacts, left: int) -> int | None:
    # With n slots a layer and both halves of E - n misses, need grows with n (two layers or more). No range is empty.
    layers = facts.num_layers

    def needed(each: int) -> int:
        return layers * each + 2 * _misses(facts, layers * each)

    if layers == 1:
        # Each slot saves two of staging until one expert is missing: need falls up to there.
        most = facts.experts_per_layer
        return next((each for each in (most, most - 1) if each and needed(each) <= left), None)
    each = bisect_right(range(facts.experts_per_layer + 1), left, key=needed) - 1
    if each < 1 or needed(each) > left:
        return None
    spare = left - 2 * _misses(facts, layers * each)
    return min(spare, layers * (each + 1) - 1, facts.total_experts)


def _most_slots_in_waves(facts: ModelFacts, left: int) -> int | None:
    # Another number of waves makes a ring smaller by leaps, so need does not grow with n: from the most down.
    layers = facts.num_layers
    for each in range(min(facts.experts_per_layer, left // layers), 0, -1):
        misses = _misses(facts, layers * each)
        spare = left - 2 * -(-misses // _num_waves(misses))
        if spare >= layers * each:
            return min(spare, layers * (each + 1) - 1, facts.total_experts)
    return None


def deal(slots: int, layers: int) -> tuple[int, ...]:
    """The same for all; what is left over goes one each to layers 0, L-1, 1, L-2, ... (skew is worst at the ends)."""
    each, left = divmod(slots, layers)
    order = [
        layer for pair in zip(range(layers), reversed(range(layers)), strict=True) for layer in pair
    ]
    favoured = set(tuple(dict.fromkeys(order))[:left])
    return tuple(each + (layer in favoured) for layer in range(layers))
