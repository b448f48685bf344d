"""A shortage in words: what is needed, what there is, the field that asks for it, and the largest value that fits."""

from firmtoken.compiler.errors import Refusal
from firmtoken.compiler.fits import Fit, Fits, Shortage
from firmtoken.compiler.frontier import largest_fit, last_resident
from firmtoken.compiler.quantities import exactly, shorthand, size

CODE = "does_not_fit"
NEGLIGIBLE = 100
"""A line below this part of the whole is one of the others."""


def refuse(fits: Fits, shortage: Shortage, most: int) -> Refusal:
    """The one refusal for a shortage: what was asked explicitly is blamed first, then the machine."""
    if shortage.side == "host":
        return _refuse_host(fits, shortage, most)
    context = _asked_context(fits, most)
    freed = _with_experts(fits, slots="auto")
    if fits.profile.experts.slots != "auto" and isinstance(freed.best(context), Fit):
        return _refuse_slots(fits, shortage, freed, context)
    freed = _with_serving(fits, pool="auto")
    if fits.profile.serving.pool != "auto" and isinstance(freed.best(context), Fit):
        return _refuse_pool(fits, shortage, freed)
    largest = largest_fit(fits, most, fits.placements)
    if fits.profile.experts.placement == "resident":
        return _refuse_resident(fits, shortage, largest, context)
    if isinstance(largest, Fit) and fits.profile.serving.context != "auto":
        return _refuse_context(fits, shortage, largest)
    return _refuse_device(fits, largest if isinstance(largest, Shortage) else shortage)


def _with_experts(fits: Fits, **values: str) -> Fits:
    experts = fits.profile.experts.model_copy(update=values)
    return fits.of(fits.profile.model_copy(update={"experts": experts}))


def _with_serving(fits: Fits, **values: str) -> Fits:
    serving = fits.profile.serving.model_copy(update=values)
    return fits.of(fits.profile.model_copy(update={"serving": serving}))


def _asked_context(fits: Fits, most: int) -> int:
    asked = fits.profile.serving.context
    return min(asked, most) if isinstance(asked, int) else min(most, fits.cache.page_size)


def _refuse_host(fits: Fits, shortage: Shortage, most: int) -> Refusal:
    bank = next((part for part in shortage.lines if part.name == "bank"), None)
    what = f"the bank of {bank.count:,} experts and the engine" if bank else "the engine"
    pinned = shortage.available != fits.machine.host_memory
    verb = "must be pinned" if pinned else "are needed"
    resident = last_resident(fits, most)
    remedy = (
        f"set `serving.context` to at most {resident.context}, where every expert fits the device"
        if resident is not None
        else "or a device that holds every expert"
    )
    return Refusal(
        field="hardware.host.pinnable" if pinned else "hardware.host.memory",
        message=f"the host is too small for {what}: {exactly(shortage.needed)} {verb}, "
        f"there are {exactly(shortage.available)}",
        hint=f"it takes a host with {size(shortage.needed)}, {remedy}",
        code=CODE,
    )


def _refuse_slots(fits: Fits, shortage: Shortage, free: Fits, context: int) -> Refusal:
    found = free.weigh(context, "offload")
    most = found.slots if isinstance(found, Fit) else 0
    return Refusal(
        field="experts.slots",
        message=_needs(shortage, f"`{fits.profile.experts.slots}` slots beside this context"),
        hint=f"set `experts.slots` to at most {most}, or to `auto`; {_ledger(shortage)}",
        code=CODE,
    )


def _refuse_resident(
    fits: Fits, shortage: Shortage, largest: Fit | Shortage, context: int
) -> Refusal:
    offload = _with_experts(fits, placement="offload").best(context)
    remedies = []
    if isinstance(largest, Fit):
        remedies.append(f"set `serving.context` to at most {largest.context}")
    if isinstance(offload, Fit):
        remedies.append(
            f"use `experts.placement: auto` ({offload.slots:,} of {fits.facts.total_experts:,} fit)"
        )
    return Refusal(
        field="experts.placement",
        message=_needs(shortage, f"all {fits.facts.total_experts:,} experts"),
        hint=f"{', or '.join(remedies) or 'a device with more memory'}; {_ledger(shortage)}",
        code=CODE,
    )


def _refuse_pool(fits: Fits, shortage: Shortage, freed: Fits) -> Refusal:
    asked = fits.profile.serving.pool
    assert asked != "auto", "only a number can be too large"
    largest = largest_fit(freed, asked, freed.placements)
    most = largest.pool if isinstance(largest, Fit) else 0
    return Refusal(
        field="serving.pool",
        message=_needs(shortage, f"a pool of `{asked}` tokens"),
        hint=f"set `serving.pool` to at most {most}, or to `auto`; {_ledger(shortage)}",
        code=CODE,
    )


def _refuse_context(fits: Fits, shortage: Shortage, largest: Fit) -> Refusal:
    asked = fits.profile.serving.context
    shown = shorthand(largest.context)
    note = f" (`{shown}`)" if shown != str(largest.context) else ""
    own = fits.facts.max_positions
    what = f"a context of `{asked}` tokens"
    if isinstance(asked, int) and asked > own:
        what = f"the model's {own:,} tokens of context (`{asked}` were asked for)"
    return Refusal(
        field="serving.context",
        message=_needs(shortage, what),
        hint=f"set `serving.context` to at most {largest.context}{note}; {_ledger(shortage)}",
        code=CODE,
    )


def _refuse_device(fits: Fits, shortage: Shortage) -> Refusal:
    fewer = " or fewer `serving.requests`" if fits.requests > 1 else ""
    return Refusal(
        field=fits.machine.memory_field,
        message=_needs(shortage, "even the smallest plan"),
        hint=f"it takes a device of {size(shortage.needed + fits.machine.reserve)}{fewer}; "
        f"{_ledger(shortage)}",
        code=CODE,
    )


def _needs(shortage: Shortage, what: str) -> str:
    lack = shortage.needed - shortage.available
    return (
        f"there is no room for {what}: {size(shortage.needed)} are needed, "
        f"{size(shortage.available)} are available, {size(lack)} are missing"
    )


def _ledger(shortage: Shortage) -> str:
    """What the bytes that are needed are for, largest first; nothing is left out that would change the picture."""
    lines = sorted(shortage.lines, key=lambda part: -part.bytes)
    shown = [part for part in lines if part.bytes * NEGLIGIBLE >= shortage.needed]
    rest = sum(part.bytes for part in lines) - sum(part.bytes for part in shown)
    listed = [f"{part.name} {size(part.bytes)}" for part in shown]
    return "needed are " + ", ".join((*listed, *([f"others {size(rest)}"] if rest else ())))
