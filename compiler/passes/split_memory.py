"""`split_memory`: context first, then experts: both ledgers to the byte, and the frontier they were chosen from."""

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import (
    Batches,
    CacheChoice,
    Candidates,
    ModelFacts,
    Split,
)
from firmtoken.compiler.fits import Fit, Fits, Host, Shortage
from firmtoken.compiler.frontier import Pick, frontier, largest_fit, pick_context
from firmtoken.compiler.ledger_lines import num_pages, state_slots
from firmtoken.compiler.machine import describe_machine
from firmtoken.compiler.quantities import percent, size
from firmtoken.compiler.shortages import refuse
from firmtoken.compiler.split_warnings import SMALL_CONTEXT, split_warnings
from firmtoken.schema.profile import Profile


def split_memory(
    profile: Profile,
    facts: ModelFacts,
    batches: Batches,
    cache: CacheChoice,
    candidates: Candidates,
) -> Split:
    """Everything about memory; raises `PlanError` with numbers and the largest value that fits."""
    _refuse_empty_range(profile, facts)
    fits = Fits(profile, facts, batches, cache, candidates, describe_machine(profile.hardware))
    most = longest_context(profile, facts)
    chosen, pick = _choose(fits, most)
    chosen = fits.grown(chosen)
    host = fits.hosts[chosen.placement]
    assert isinstance(host, Host), "a fit has room on the host"
    limited_by = _limited_by(fits, chosen, most)
    return Split(
        context=chosen.context,
        pool=chosen.pool,
        limited_by=limited_by,
        context_because=_context_because(fits, chosen, pick, limited_by),
        pages=num_pages(chosen.pool, cache.page_size, batches.max_num_seqs),
        state_slots=state_slots(facts, batches.max_num_seqs),
        snapshot_slots=host.snapshots,
        placement=chosen.placement,
        experts=chosen.experts,
        experts_because=_experts_because(fits, chosen),
        prefill_span=chosen.span,
        device=chosen.device,
        host=host.ledger,
        frontier=frontier(fits, chosen, most),
        warnings=split_warnings(fits, chosen, pick),
    )


def _refuse_empty_range(profile: Profile, facts: ModelFacts) -> None:
    slots = profile.experts.slots
    if slots == "auto" or slots >= facts.num_layers:
        return
    raise PlanError(
        (
            Refusal(
                field="experts.slots",
                message=f"`{slots}` slots are fewer than one for each of {facts.num_layers} layers",
                hint=f"write at least `{facts.num_layers}`, or `auto`",
                code="contradiction",
            ),
        )
    )


def longest_context(profile: Profile, facts: ModelFacts) -> int:
    """min(the model's positions, the pool if one is asked for) (D2)."""
    pool = profile.serving.pool
    return facts.max_positions if pool == "auto" else min(pool, facts.max_positions)


def _choose(fits: Fits, most: int) -> tuple[Fit, Pick | None]:
    asked = fits.profile.serving.context
    if asked == "auto":
        picked = pick_context(fits, most)
        if isinstance(picked, Pick):
            return picked.fit, picked
        raise PlanError((refuse(fits, picked, most),))
    found = (
        largest_fit(fits, most, fits.placements) if asked == "max" else fits.best(min(asked, most))
    )
    if isinstance(found, Shortage):
        raise PlanError((refuse(fits, found, most),))
    return found, None


def _limited_by(fits: Fits, chosen: Fit, most: int) -> str:
    asked = fits.profile.serving.context
    if isinstance(asked, int) and asked <= most:
        return "asked"
    if chosen.context == most:
        return "model" if most == fits.facts.max_positions else "asked"
    blocked = any(isinstance(fits.hosts[name], Shortage) for name in fits.placements)
    return "host_memory" if blocked else "device_memory"


def _context_because(fits: Fits, chosen: Fit, pick: Pick | None, limited_by: str) -> str:
    asked = fits.profile.serving.context
    kv = next(part for part in chosen.device.lines if part.name == "kv_pages")
    paid = f"{size(kv.bytes)} of {fits.cache.kv_dtype} pages for a pool of {chosen.pool:,}"
    if isinstance(asked, int):
        bound = "" if limited_by == "asked" else f", the model ends at {chosen.context:,}"
        own = min(SMALL_CONTEXT, fits.facts.max_positions)
        note = f"; note: agents often need {own:,}" if chosen.context < own else ""
        return f"{asked:,} tokens were asked for{bound}; reserved first: {paid}{note}"
    if asked == "max":
        ends = "the model's positions" if limited_by == "model" else "the largest that fits"
        return f"`max`: {ends}; {paid}"
    assert pick is not None
    prefer = fits.profile.serving.prefer
    return (
        f"`auto`, preferring {prefer}: the best trade of context against speed from "
        f"{pick.floor:,} tokens up; {paid}"
    )


def _experts_because(fits: Fits, chosen: Fit) -> str:
    total = fits.facts.total_experts
    slot = fits.candidates.slot_bytes
    if chosen.placement == "resident":
        return (
            f"all {total:,} experts fit beside the context ({size(total * slot)}), so there is no table, "
            f"no admission and no staging; {size(chosen.device.free)} stay free"
        )
    share = percent(chosen.slots / total)
    asked = fits.profile.experts.slots
    if asked != "auto":
        return f"`experts.slots` asks for {asked:,} of {total:,} ({share})"
    others = chosen.device.total - sum(
        part.bytes for part in chosen.device.lines if part.name.startswith("experts.")
    )
    return (
        f"{size(chosen.device.budget - others)} are left beside the context: {chosen.slots:,} of {total:,} "
        f"experts ({share}) in slots of {size(slot)}, {chosen.experts.staging_slots} to stage and "
        f"{chosen.experts.overflow_slots} to overflow"
    )
