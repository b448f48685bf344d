"""`compile_profile`: the recipe, in order. Each pass takes exactly what it needs and returns its own frozen part."""

from collections.abc import Sequence
from dataclasses import dataclass

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.facts import Batches, CacheChoice, Candidates, ModelFacts, Split
from firmtoken.compiler.family import Family
from firmtoken.compiler.machine import captures, describe_machine
from firmtoken.compiler.passes.advise import advise
from firmtoken.compiler.passes.allocate_buffers import allocate_buffers
from firmtoken.compiler.passes.assemble import Parts, assemble
from firmtoken.compiler.passes.bound_batches import bound_batches
from firmtoken.compiler.passes.choose_cache import choose_cache, without_snapshots
from firmtoken.compiler.passes.choose_kernels import choose_kernels
from firmtoken.compiler.passes.choose_slot_format import choose_slot_format
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.passes.estimate import estimate
from firmtoken.compiler.passes.lower import lower
from firmtoken.compiler.passes.name_kernels import formats_of, name_kernels, used_kernels
from firmtoken.compiler.passes.place_memory import place_memory
from firmtoken.compiler.passes.place_streams import place_streams
from firmtoken.compiler.passes.set_thresholds import set_thresholds
from firmtoken.compiler.passes.split_memory import split_memory
from firmtoken.compiler.plan import Plan, SlotPart
from firmtoken.compiler.speed import describe_costs, split_residency
from firmtoken.compiler.verify import verify
from firmtoken.schema.profile import Profile

PLACEMENTS = ("resident", "offload")


def compile_profile(profile: Profile, cards: Sequence[KernelCard]) -> Plan:
    """The plan for this profile; raises `PlanError` with every reason why there is none."""
    family, facts = describe_model(profile)
    batches = bound_batches(profile, facts)
    cache = choose_cache(profile, facts)
    layouts = lay_out(profile, family, facts, batches, cache, cards)
    split = split_memory(profile, facts, batches, cache, layouts.candidates)
    if cache.snapshots and not split.snapshot_slots:
        # Known only now: the host has no room for a single snapshot.
        cache = without_snapshots(profile, cache)
        layouts = lay_out(profile, family, facts, batches, cache, cards)
        split = split_memory(profile, facts, batches, cache, layouts.candidates)
    candidates, chosen = layouts.candidates, layouts.candidates.laid[split.placement]
    machine = describe_machine(profile.hardware)
    costs = describe_costs(machine, facts, cache, candidates, chosen, captured=captures(profile))
    residency = split_residency(facts, split)

    def resplit(changed: Profile) -> Split:
        """The memory of a changed profile; laid out again only where launches change."""
        other, kept = bound_batches(changed, facts), choose_cache(changed, facts)
        again = layouts if other == batches else lay_out(changed, family, facts, other, kept, cards)
        return split_memory(changed, facts, other, kept, again.candidates)

    plan = assemble(
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
                shares_banks=machine.shares_banks,
            ),
            schedule=set_thresholds(profile, batches, split, costs, residency, cache.page_size),
            estimates=estimate(costs, residency, batches),
            advice=advise(profile, resplit),
            cards=tuple(cards),
        )
    )
    verify(plan)
    return plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Both placements, laid out with the kernels that they share."""

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
    """Programs, kernels, streams and activations of each placement."""
    placed = {
        placement: place_streams(
            lower(
                family,
                facts,
                batches,
                placement=placement,
                snapshots=cache.snapshots,
                captured=captures(profile),
            ),
            layout=profile.streams.layout,
        )
        for placement in PLACEMENTS
    }
    slot_format = choose_slot_format(profile, cards)
    formats = formats_of(facts, cache, slot_format)
    used = used_kernels(tuple(programs for programs, _ in placed.values()), formats)
    kernels = choose_kernels(profile, facts, cache, used, cards)
    laid = {}
    for placement, (programs, streams) in placed.items():
        named = name_kernels(programs, formats, kernels)
        laid[placement] = allocate_buffers(
            facts, batches, named, streams, placement=placement, page_size=cache.page_size
        )
    parts = slot_parts(slot_format, facts.hidden_size, facts.expert_width)
    candidates = Candidates(
        laid=laid,
        slot_bytes=slot_bytes(parts),
        bank_row_bytes=slot_bytes(parts),
        workspace_bytes=sum(row.workspace_bytes for row in kernels),
    )
    return Layouts(
        candidates=candidates, kernels=kernels, slot_format=slot_format, slot_parts=parts
    )
