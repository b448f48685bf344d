"""`split_memory`: context first, then experts: both ledgers to the byte, and the frontier they were chosen from."""

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import ModelFacts, Split
from firmtoken.compiler.fits import Fit, Fits, Host, Shortage
from firmtoken.compiler.frontier import (
    Pick,
    frontier,
    largest_fit,
    longest_context,
    pick_context,
)
from firmtoken.compiler.ledger_lines import num_pages, state_slots
from firmtoken.compiler.quantities import percent, size
from firmtoken.compiler.shortages import refuse
from firmtoken.compiler.slot_split import exact_slots, is_small
from firmtoken.compiler.split_warnings import SMALL_CONTEXT, split_warnings
from firmtoken.compiler.wishes import Refit
from firmtoken.schema.profile import Profile

LEAST_MEANT = 1024
"""A shorter context holds no prompt of an agent: who writes 64 may mean 64k."""


def split_memory(
    fits: Fits,
    refit: Refit,
) -> Split:
    """Everything about memory; raises `PlanError` with numbers and the largest value that fits.

    `refit` weighs what a refusal proposes.
    """
    facts, cache, batches = fits.facts, fits.cache, fits.batches
    _refuse_empty_range(fits.profile, facts)
    most = longest_context(fits)
    chosen, pick = _choose(fits, most, refit)
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


def _choose(fits: Fits, most: int, refit: Refit) -> tuple[Fit, Pick | None]:
    asked = fits.profile.serving.context
    if asked == "auto":
        picked = pick_context(fits, most)
        if isinstance(picked, Pick):
            return picked.fit, picked
        raise PlanError((refuse(fits, picked, refit),))
    found = (
        largest_fit(fits, most, fits.placements) if asked == "max" else fits.best(min(asked, most))
    )
    if isinstance(found, Shortage):
        raise PlanError((refuse(fits, found, refit),))
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
        note = f"; note: {_small_note(asked, own)}" if chosen.context < own else ""
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


def _small_note(asked: int, own: int) -> str:
    """For a context that was asked for and is small: 64 tokens are rather 64k whose suffix was forgotten."""
    needed = f"agents often need {own:,}"
    return f"did you mean `{asked}k`? {needed}" if asked < LEAST_MEANT else needed


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
        staging = _staging_because(fits, chosen)
        return f"`experts.slots` asks for {asked:,} of {total:,} ({share}); {staging}"
    others = chosen.device.total - sum(
        part.bytes for part in chosen.device.lines if part.name.startswith("experts.")
    )
    return (
        f"{size(chosen.device.budget - others)} are left beside the context: {chosen.slots:,} of {total:,} "
        f"experts ({share}) in slots of {size(slot)}, and {chosen.experts.overflow_slots} to overflow; "
        f"{_staging_because(fits, chosen)}"
    )


def _staging_because(fits: Fits, chosen: Fit) -> str:
    """Why a layer's misses come whole or in waves (D8)."""
    experts, facts = chosen.experts, fits.facts
    whole = exact_slots(facts, fits.requests, chosen.slots, "offload").staging_slots
    if experts.layout == "waves":
        return (
            f"{experts.staging_slots} slots stage a layer's misses in {experts.waves} waves, "
            f"where staging them at once takes {whole}"
        )
    words = f"{whole} slots stage a layer's misses at once"
    if is_small(experts):
        return f"{words}, too few for waves to save much"
    if fits.profile.experts.slots != "auto":
        return f"{words}: they fit, and waves would leave their room to nobody"
    if "waves" not in fits.candidates.laid:
        return f"{words}, since in waves a span is one chunk of {fits.batches.moe_chunk:,} tokens"
    if isinstance(fits.in_waves(chosen.context, chosen.pool), Shortage):
        return f"{words}; in waves the rows of a chunk would live longer and not fit"
    return f"{words}: in waves each chunk streams the bank, and {fits.batches.moe_chunk:,} tokens hide too little of it"
