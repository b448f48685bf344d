"""A shortage in words: what is needed, what there is, the field that asks for it, and the largest value that fits."""

from firmtoken.compiler.errors import Refusal
from firmtoken.compiler.fits import Fit, Fits, Shortage
from firmtoken.compiler.frontier import largest_fit
from firmtoken.compiler.ledger import Line
from firmtoken.compiler.quantities import shorthand, size
from firmtoken.schema.profile import Profile

CODE = "does_not_fit"


def refuse(fits: Fits, shortage: Shortage, most: int) -> Refusal:
    """The one refusal for a shortage: what was asked explicitly is blamed first, then the machine."""
    if shortage.side == "host":
        return _refuse_host(fits, shortage)
    slots = _with(fits, fits.profile.model_copy(update={"experts": _free_slots(fits.profile)}))
    context = _asked_context(fits, most)
    if fits.profile.experts.slots != "auto" and isinstance(slots.best(context), Fit):
        return _refuse_slots(fits, shortage, slots, context)
    largest = largest_fit(fits, most, fits.placements)
    if fits.profile.experts.placement == "resident":
        return _refuse_resident(fits, shortage, largest, context)
    if isinstance(largest, Fit) and fits.profile.serving.context != "auto":
        return _refuse_context(fits, shortage, largest)
    return _refuse_device(fits, shortage)


def _free_slots(profile: Profile) -> object:
    return profile.experts.model_copy(update={"slots": "auto"})


def _with(fits: Fits, profile: Profile) -> Fits:
    return Fits(profile, fits.facts, fits.batches, fits.cache, fits.candidates, fits.machine)


def _asked_context(fits: Fits, most: int) -> int:
    asked = fits.profile.serving.context
    return min(asked, most) if isinstance(asked, int) else min(most, fits.cache.page_size)


def _refuse_host(fits: Fits, shortage: Shortage) -> Refusal:
    bank = next((part for part in shortage.lines if part.name == "bank"), None)
    what = f"the bank of {bank.count:,} experts and the engine" if bank else "the engine"
    pinned = shortage.available != fits.machine.host_memory
    field = "hardware.host.pinnable" if pinned else "hardware.host.memory"
    verb = "must be pinned" if pinned else "are needed"
    return Refusal(
        field=field,
        message=f"{what} do not fit the host: {size(shortage.needed)} {verb}, "
        f"there are {size(shortage.available)}",
        hint=f"a host with {size(shortage.needed)}, or a device that holds every expert",
        code=CODE,
    )


def _refuse_slots(fits: Fits, shortage: Shortage, free: Fits, context: int) -> Refusal:
    found = free.weigh(context, "offload")
    most = found.slots if isinstance(found, Fit) else 0
    return Refusal(
        field="experts.slots",
        message=_needs(fits, shortage, f"`{fits.profile.experts.slots}` slots beside this context"),
        hint=f"set `experts.slots` to at most {most}, or to `auto`",
        code=CODE,
    )


def _refuse_resident(
    fits: Fits, shortage: Shortage, largest: Fit | Shortage, context: int
) -> Refusal:
    experts = fits.profile.experts.model_copy(update={"placement": "offload"})
    offload = _with(fits, fits.profile.model_copy(update={"experts": experts})).best(context)
    remedies = []
    if isinstance(largest, Fit):
        remedies.append(f"set `serving.context` to at most {largest.context}")
    if isinstance(offload, Fit):
        remedies.append(
            f"use `experts.placement: auto` ({offload.slots:,} of {fits.facts.total_experts:,} fit)"
        )
    return Refusal(
        field="experts.placement",
        message=_needs(fits, shortage, f"all {fits.facts.total_experts:,} experts"),
        hint=", or ".join(remedies) or "a device with more memory",
        code=CODE,
    )


def _refuse_context(fits: Fits, shortage: Shortage, largest: Fit) -> Refusal:
    asked = fits.profile.serving.context
    field = "serving.context"
    pool = fits.profile.serving.pool
    if pool != "auto" and pool > largest.pool:
        field, asked = "serving.pool", pool
    shown = shorthand(largest.context)
    note = f" (`{shown}`)" if shown != str(largest.context) else ""
    return Refusal(
        field=field,
        message=_needs(fits, shortage, f"a context of `{asked}` tokens"),
        hint=f"set `{field}` to at most {largest.context}{note}",
        code=CODE,
    )


def _refuse_device(fits: Fits, shortage: Shortage) -> Refusal:
    biggest = sorted(shortage.lines, key=lambda part: -part.bytes)[:3]
    return Refusal(
        field=fits.machine.memory_field,
        message=_needs(fits, shortage, "even the smallest plan"),
        hint=f"the largest parts are {_listed(biggest)}",
        code=CODE,
    )


def _needs(fits: Fits, shortage: Shortage, what: str) -> str:
    lack = shortage.needed - shortage.available
    return (
        f"{what} does not fit: {size(shortage.needed)} are needed, {size(shortage.available)} are "
        f"available, {size(lack)} are missing"
    )


def _listed(lines: list[Line]) -> str:
    return ", ".join(f"{part.name} {size(part.bytes)}" for part in lines)
