"""`compile_profile`: the recipe, in order. Each pass takes exactly what it needs and returns its own frozen part."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.costs import split_residency
from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.facts import Batches, CacheChoice, Candidates, ModelFacts, Split
from firmtoken.compiler.family import Family
from firmtoken.compiler.fits import Fits
from firmtoken.compiler.machine import describe_machine, uses_graphs
from firmtoken.compiler.passes.advise import advise
from firmtoken.compiler.passes.allocate_buffers import allocate_buffers
from firmtoken.compiler.passes.assemble import Parts, assemble
from firmtoken.compiler.passes.bound_batches import bound_batches
from firmtoken.compiler.passes.choose_cache import choose_cache, without_snapshots
from firmtoken.compiler.passes.choose_kernels import choose_kernels
from firmtoken.compiler.passes.choose_slot_format import choose_slot_format
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.passes.estimate import estimate
from firmtoken.compiler.passes.fold_shared import fold_shared
from firmtoken.compiler.passes.lower import lower
from firmtoken.compiler.passes.name_kernels import (
    formats_of,
    name_kernels,
    rows_for,
    used_kernels,
)
from firmtoken.compiler.passes.place_memory import place_memory
from firmtoken.compiler.passes.place_streams import place_streams
from firmtoken.compiler.passes.set_thresholds import set_thresholds
from firmtoken.compiler.passes.split_memory import split_memory
from firmtoken.compiler.plan import Plan, SlotPart
from firmtoken.compiler.slot_split import may_be_large
from firmtoken.compiler.verify import verify
from firmtoken.compiler.workspaces import sizes_of, workspaces_of
from firmtoken.schema.profile import Profile


def compile_profile(profile: Profile, cards: Sequence[KernelCard]) -> Plan:
    """The plan for this profile; raises `PlanError` with every reason why there is none."""
    plan = draft_plan(profile, cards, advised=True)
    verify(plan)
    return plan


def draft_plan(profile: Profile, cards: Sequence[KernelCard], *, advised: bool = False) -> Plan:
    """The plan, not verified and without advice: enough to compare a wish with another; never to be run."""
    family, facts = describe_model(profile)
    bench = Bench(family, facts, cards, snapshots=True)
    fits = bench.refit(profile)
    split = split_memory(fits, bench.refit)
    if fits.cache.snapshots and not split.snapshot_slots:
        # Known only now: the host has no room for a single snapshot.
        bench = Bench(family, facts, cards, snapshots=False)
        fits = bench.refit(profile)
        split = split_memory(fits, bench.refit)
    batches, cache, candidates = fits.batches, fits.cache, fits.candidates
    layouts, chosen = bench.layouts(profile), candidates.laid[split.experts.layout]
    costs = fits.costs[split.experts.layout]
    residency = split_residency(facts, split)
    schedule = set_thresholds(profile, batches, split, costs, residency, cache.page_size)

    return assemble(
        Parts(
            profile=profile,
            facts=facts,
            cache=cache,
            slot_format=layouts.slot_format,
            slot_parts=layouts.slot_parts,
            kernels=layouts.kernels,
            laid=chosen,
            split=split,
            memory=place_memory(
                facts,
                cache,
                chosen,
                split,
                candidates.slot_bytes,
                shares_banks=fits.machine.shares_banks,
                pins=fits.machine.kind == "cuda",
            ),
            schedule=schedule,
            estimates=estimate(
                profile, costs, residency, batches, cache, split, schedule.on_demand_below
            ),
            advice=advise(profile, bench.resplit) if advised else (),
            cards=tuple(cards),
        )
    )


class Bench:
    """Weighs wishes for one model: laid out again only where launches or caches differ.

    `snapshots`: whether the host has room for one.
    """

    def __init__(
        self, family: Family, facts: ModelFacts, cards: Sequence[KernelCard], *, snapshots: bool
    ) -> None:
        self._family = family
        self._facts = facts
        self._cards = cards
        self._snapshots = snapshots
        self._known: dict[tuple[Batches, CacheChoice], Layouts] = {}

    def layouts(self, wish: Profile) -> "Layouts":
        """Programs and kernels of a wish; raises `PlanError` where it has none."""
        # Words differ from wish to wish where nothing else does.
        batches = replace(bound_batches(wish, self._facts), because="")
        cache = replace(self._cache(wish), because="")
        if (batches, cache) not in self._known:
            self._known[batches, cache] = lay_out(
                wish, self._family, self._facts, batches, cache, self._cards
            )
        return self._known[batches, cache]

    def refit(self, wish: Profile) -> Fits:
        """What a wish is weighed with."""
        return Fits(
            wish,
            self._facts,
            bound_batches(wish, self._facts),
            self._cache(wish),
            self.layouts(wish).candidates,
            describe_machine(wish.hardware),
        )

    def resplit(self, wish: Profile) -> Split:
        """The memory of a wish."""
        return split_memory(self.refit(wish), self.refit)

    def _cache(self, wish: Profile) -> CacheChoice:
        cache = choose_cache(wish, self._facts)
        return cache if self._snapshots else without_snapshots(cache)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Every possible layout, with the kernels that they share."""

    candidates: Candidates
    kernels: tuple[KernelChoice, ...]
    slot_format: str
    slot_parts: tuple[SlotPart, ...]


def lay_out(
    profile: Profile,
    family: Family,
    facts: ModelFacts,
    batches: Batches,
    cache: CacheChoice,
    cards: Sequence[KernelCard],
) -> Layouts:
    """Programs, kernels, streams and activations of each layout."""
    placed = {
        layout: place_streams(
            lower(
                family,
                facts,
                batches,
                layout=layout,
                snapshots=cache.snapshots,
                captured=uses_graphs(profile),
            ),
            layout=profile.streams.layout,
        )
        for layout in _possible_layouts(profile, facts, batches)
    }
    slot_format = choose_slot_format(profile, cards)
    formats = formats_of(facts, cache, slot_format)
    used = used_kernels(tuple(programs for programs, _ in placed.values()), formats)
    kernels = choose_kernels(profile, facts, batches, cache, used, cards)
    named = {key for key, choice in profile.kernels.items() if isinstance(choice, str)}
    programs, streams = placed["resident"]
    placed["resident"] = fold_shared(programs, formats, kernels, cards, named), streams
    laid = {}
    for layout, (programs, streams) in placed.items():
        laid[layout] = allocate_buffers(
            facts,
            batches,
            name_kernels(programs, formats, kernels),
            streams,
            layout=layout,
            page_size=cache.page_size,
        )
    parts = slot_parts(slot_format, facts.hidden_size, facts.expert_width)
    candidates = Candidates(
        laid=laid,
        slot_bytes=slot_bytes(parts),
        bank_row_bytes=slot_bytes(parts),
        workspaces={
            layout: workspaces_of(
                rows_for(programs, formats, kernels), sizes_of(profile, facts, batches)
            )
            for layout, (programs, _) in placed.items()
        },
    )
    return Layouts(
        candidates=candidates, kernels=kernels, slot_format=slot_format, slot_parts=parts
    )


def _possible_layouts(profile: Profile, facts: ModelFacts, batches: Batches) -> tuple[str, ...]:
    # In waves the rows of a whole chunk wait for the last wave, so a span is one chunk.
    span = profile.schedule.prefill_span
    waves = may_be_large(facts) and (span == "auto" or span <= batches.moe_chunk)
    return ("resident", "offload", "waves") if waves else ("resident", "offload")
