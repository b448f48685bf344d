"""Warnings of a split: for what the user did not ask for (D16)."""

from collections.abc import Iterator

from firmtoken.compiler.fits import SNAPSHOT_SHARE, Fit, Fits, Host
from firmtoken.compiler.frontier import Pick, fit_speed
from firmtoken.compiler.ledger_lines import page_bytes, snapshot_line
from firmtoken.compiler.plan import PlanWarning
from firmtoken.compiler.quantities import rate, size
from firmtoken.compiler.shortages import host_remedy
from firmtoken.compiler.wishes import changed

SMALL_CONTEXT = 32 * 1024
STRANDED_SHARE = 0.05
"""Of the device."""


def split_warnings(fits: Fits, chosen: Fit, pick: Pick | None) -> tuple[PlanWarning, ...]:
    """All warnings, in the order of what they cost."""
    return (
        *_small_context(fits, chosen, pick),
        *_stranded(fits, chosen),
        *_no_prefix_cache(fits, chosen),
    )


def _small_context(fits: Fits, chosen: Fit, pick: Pick | None) -> Iterator[PlanWarning]:
    if pick is not None and pick.floor < pick.wanted_floor:
        yield PlanWarning(
            code="floor_lowered",
            message=f"`auto` wants at least {pick.wanted_floor:,} tokens of context, which do not "
            f"fit; it started from {pick.floor:,}",
            hint=f"{' or '.join(_what_gives_more(fits))} more context",
        )
    own = min(SMALL_CONTEXT, fits.facts.max_positions)
    if not isinstance(fits.profile.serving.context, int) and chosen.context < own:
        yield PlanWarning(
            code="small_context",
            message=f"the effective context is {chosen.context:,} tokens, below {own:,}",
            hint="set `serving.context` to a number if this is meant",
        )


def _what_gives_more(fits: Fits) -> Iterator[str]:
    if fits.cache.kv_dtype == "bf16":
        yield "`cache.kv_dtype: fp8`"
    if fits.requests > 1:
        yield "fewer `serving.requests`"
    yield f"a larger `{fits.machine.memory_field}` gives"


def _no_prefix_cache(fits: Fits, chosen: Fit) -> Iterator[PlanWarning]:
    if fits.profile.cache.type != "auto" or fits.cache.type != "none":
        return
    host = fits.hosts[chosen.placement]
    assert isinstance(host, Host), "a fit has room on the host"
    lines = [part for part in host.ledger.lines if part.name != "restart_copy"]
    snapshots = snapshot_line(fits.cache, SNAPSHOT_SHARE, 0)
    remedy = host_remedy(fits.machine, (*lines, snapshots))
    yield PlanWarning(
        code="no_prefix_cache",
        message="the host has no room for a single snapshot of the linear layers' states "
        f"({size(snapshots.unit_bytes)}, in an eighth of what is left), so every prompt is computed from its "
        "first token",
        hint=f"{remedy}, or set `cache.type` to `none` if this is meant",
    )


def _stranded(fits: Fits, chosen: Fit) -> Iterator[PlanWarning]:
    limit = STRANDED_SHARE * fits.machine.capacity
    idle = chosen.pool - fits.useful_pool(chosen.context)
    bytes_per_token = page_bytes(fits.facts, fits.cache) // fits.cache.page_size
    if fits.profile.serving.pool != "auto" and idle * bytes_per_token > limit:
        yield PlanWarning(
            code="stranded_memory",
            message=f"{size(idle * bytes_per_token)} of the pool, {idle:,} tokens, are more than "
            f"{fits.requests} x {chosen.context:,} and as much again for prefixes",
            hint=f"set `serving.pool` to at most {fits.useful_pool(chosen.context)}, or to `auto`",
        )
    if chosen.device.free <= limit:
        return
    if fits.profile.experts.slots != "auto" and chosen.slots < fits.facts.total_experts:
        yield _idle_slots(fits, chosen)
    elif chosen.placement == "offload":
        yield PlanWarning(
            code="stranded_memory",
            message=f"`experts.placement: offload` keeps a table although every expert fits: "
            f"{size(chosen.device.free)} of the device stay idle",
            hint="set `experts.placement` to `auto`",
        )


def _idle_slots(fits: Fits, chosen: Fit) -> PlanWarning:
    free = fits.of(changed(fits.profile, "experts.slots", "auto"))
    better = free.best(chosen.context)
    assert isinstance(better, Fit), "more slots than these fit"
    lost = fit_speed(free, better).decode_tokens_per_s - fit_speed(fits, chosen).decode_tokens_per_s
    return PlanWarning(
        code="stranded_memory",
        message=f"`experts.slots` leaves {size(chosen.device.free)} of the device to nobody: "
        f"{better.slots - chosen.slots:,} more experts fit, worth {rate(lost)} tokens/s",
        hint=f"set `experts.slots` to `auto` ({better.slots:,})",
    )
