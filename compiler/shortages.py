"""A shortage in words: what is needed, what there is, the field that asks for it, and the smallest change that fits.

Every change that is proposed was weighed, with the launches and layouts that it leads to.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.fits import Fit, Fits, Shortage
from firmtoken.compiler.frontier import least_context
from firmtoken.compiler.ledger import Line
from firmtoken.compiler.ledger_lines import pinned_bytes
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.quantities import enough, exactly, shorthand, size
from firmtoken.compiler.wishes import (
    Refit,
    asked,
    changed,
    largest_context,
    most_of,
    most_requests,
    weighed,
)

CODE = "does_not_fit"
NEGLIGIBLE = 100
"""A line below this part of the whole is one of the others."""
PLENTY = 2**45
"""Bytes of a host that is not what is short."""
MOST_ROUNDS = 4


def refuse(fits: Fits, shortage: Shortage, refit: Refit) -> Refusal:
    """The one refusal for a shortage: what was asked explicitly is blamed first, then the machine."""
    if shortage.side == "host":
        return _refuse_host(fits, shortage, refit)
    profile = fits.profile
    for field in ("experts.slots", "serving.pool"):
        if asked(profile, field) != "auto" and weighed(refit, changed(profile, field, "auto")):
            return _refuse_number(fits, shortage, refit, field)
    if profile.experts.placement == "resident":
        return _refuse_resident(fits, shortage, refit)
    largest = largest_context(fits, refit)
    if largest:
        return _refuse_context(fits, shortage, refit, largest)
    return _refuse_device(fits, shortage, refit)


def _refuse_number(fits: Fits, shortage: Shortage, refit: Refit, field: str) -> Refusal:
    """A number of slots, or of tokens in the pool, without which the rest fits."""
    number = asked(fits.profile, field)
    assert isinstance(number, int), "only a number can be too large"
    pool = field == "serving.pool"
    # A pool must hold what one request may, a layer one slot at least.
    least = _held(fits) if pool else fits.facts.num_layers
    most = most_of(
        range(least, number),
        lambda fewer: weighed(refit, changed(fits.profile, field, fewer)) is not None,
    )
    fewer = f"at most {most}, or to " if most else ""
    what = f"a pool of `{number}` tokens" if pool else f"`{number}` slots beside this context"
    return _refusal(
        field,
        _needs(shortage, what),
        (*_narrow_keys(fits, refit), f"set `{field}` to {fewer}`auto`"),
        shortage,
    )


def _held(fits: Fits) -> int:
    """What one request may hold, as it was asked for."""
    return (
        fits.facts.max_positions if fits.profile.serving.context == "max" else least_context(fits)
    )


def _refuse_resident(fits: Fits, shortage: Shortage, refit: Refit) -> Refusal:
    total = fits.facts.total_experts
    remedies = [*_narrow_keys(fits, refit)]
    largest = largest_context(fits, refit)
    if largest:
        remedies.append(f"set `serving.context` to at most {largest}")
    free = weighed(refit, changed(fits.profile, "experts.placement", "auto"))
    if free is not None:
        remedies.append(f"use `experts.placement: auto` ({free.slots:,} of {total:,} fit)")
    return _refusal(
        "experts.placement",
        _needs(shortage, f"all {total:,} experts"),
        remedies or (f"it takes {_larger_device(fits, shortage, refit)}",),
        shortage,
    )


def _refuse_context(fits: Fits, shortage: Shortage, refit: Refit, largest: int) -> Refusal:
    wanted, own = fits.profile.serving.context, fits.facts.max_positions
    what = f"a context of `{wanted}` tokens"
    if not isinstance(wanted, int):
        # `auto` and `max` lay launches out for the longest prompt of the model, a number for no more than itself.
        what = f"`serving.context: {wanted}` with chunks of {fits.batches.moe_chunk:,} tokens"
    elif wanted > own:
        what = f"the model's {own:,} tokens of context (`{wanted}` were asked for)"
    shown = shorthand(largest)
    note = f" (`{shown}`)" if shown != str(largest) else ""
    remedies = [*_narrow_keys(fits, refit), f"set `serving.context` to at most {largest}{note}"]
    if len(remedies) == 1 and fits.cache.kv_dtype == "bf16":
        remedies += _context_beside(fits, refit, "cache.kv_dtype", "fp8", largest)
    return _refusal("serving.context", _needs(shortage, what), remedies, shortage)


def _refuse_device(fits: Fits, shortage: Shortage, refit: Refit) -> Refusal:
    """No context fits beside so many requests, or beside what else was asked for."""
    requests = most_requests(fits, refit)
    larger = f"it takes {_larger_device(fits, shortage, refit)}"
    if requests:
        fewer = f"set `serving.requests` to at most {requests}"
        what = f"`{fits.requests}` requests"
        remedies = (*_narrow_keys(fits, refit), fewer, larger)
        return _refusal("serving.requests", _needs(shortage, what), remedies, shortage)
    for field, value in (
        ("experts.slots", "auto"),
        ("serving.pool", "auto"),
        ("serving.requests", 1),
    ):
        here = asked(fits.profile, field)
        beside = tuple(_context_beside(fits, refit, field, value, 0)) if here != value else ()
        if beside:
            what = f"this context and `{field}: {here}`"
            return _refusal("serving.context", _needs(shortage, what), (*beside, larger), shortage)
    smallest = _smallest(fits, refit) or shortage
    if smallest.needed != shortage.needed:
        larger = f"{larger} for this context"
    return _refusal(
        fits.machine.memory_field, _needs(smallest, "even the smallest plan"), (larger,), smallest
    )


def _smallest(fits: Fits, refit: Refit) -> Shortage | None:
    """What even a context of a page lacks, with the launches of one."""
    page = max(2, min(fits.cache.page_size, fits.facts.max_positions))
    try:
        found = refit(changed(fits.profile, "serving.context", page)).best(page)
    except PlanError:
        return None
    return found if isinstance(found, Shortage) else None


def _narrow_keys(fits: Fits, refit: Refit) -> Iterator[str]:
    """FP8 keys and values cost least of what is asked for: they come before fewer experts, tokens or requests."""
    narrow = changed(fits.profile, "cache.kv_dtype", "fp8")
    if fits.cache.kv_dtype == "bf16" and weighed(refit, narrow):
        yield "set `cache.kv_dtype` to `fp8`"


def _context_beside(
    fits: Fits, refit: Refit, field: str, value: object, above: int
) -> Iterator[str]:
    """The largest context beside another change, if it is above what fits without."""
    try:
        largest = largest_context(refit(changed(fits.profile, field, value)), refit)
    except PlanError:
        return
    if largest > above:
        yield f"with `{field}: {value}` set `serving.context` to at most {largest}"


def _larger_device(fits: Fits, shortage: Shortage, refit: Refit) -> str:
    """The least memory with which this would fit: a larger device may get longer chunks, which take more."""
    needed, profile = shortage.needed + fits.machine.reserve, fits.profile
    for _ in range(MOST_ROUNDS):
        there = refit(changed(profile, fits.machine.memory_field, needed))
        found = there.best(least_context(there))
        if isinstance(found, Fit) or found.side == "host":
            break
        needed = found.needed + fits.machine.reserve
    return f"`{fits.machine.memory_field}` of at least `{enough(needed)}`"


# The host


def _refuse_host(fits: Fits, shortage: Shortage, refit: Refit) -> Refusal:
    host_of = changed(fits.profile, "hardware.host.memory", PLENTY)
    roomy = refit(changed(host_of, "hardware.host.pinnable", PLENTY))
    found = roomy.best(least_context(roomy))
    host = fits.hosts[found.placement]
    # What the device would hold decides what the host must: all experts on it need no bank.
    lacking = host if isinstance(host, Shortage) else shortage
    remedy = host_remedy(fits.machine, lacking.lines)
    if isinstance(found, Shortage):
        # A larger host alone would only meet the next refusal.
        device = refuse(roomy, found, refit)
        return replace(device, hint=f"{remedy} as well; {device.hint}")
    pinned = lacking.available != fits.machine.host_memory
    verb = "must be pinned" if pinned else "are needed"
    field = "hardware.host.pinnable" if pinned else "hardware.host.memory"
    other = _without_bank(fits, refit, field)
    if other is not None:
        field, instead = other
        remedy = f"{instead}, or {remedy}"
    return Refusal(
        field=field,
        message=f"the host is too small for {_host_needs(lacking)}: {exactly(lacking.needed)} {verb}, "
        f"there are {exactly(lacking.available)}",
        hint=remedy,
        code=CODE,
    )


def _host_needs(lacking: Shortage) -> str:
    lines = {part.name: part for part in lacking.lines}
    what = ["the engine"]
    if "bank" in lines:
        what.insert(0, f"the bank of {lines['bank'].count:,} experts")
    if "snapshots" in lines:
        each = size(lines["snapshots"].unit_bytes)
        what.append(f"one snapshot of {each}, which may take an eighth of what is left")
    return " and ".join(what)


def host_remedy(machine: Machine, lines: Sequence[Line]) -> str:
    """What the host must have for these lines: of memory, and of memory that can be pinned."""
    wanted = (
        ("memory", sum(part.bytes for part in lines), machine.host_memory),
        ("pinnable", pinned_bytes(lines), machine.pinnable),
    )
    return "it takes " + " and ".join(
        f"`hardware.host.{name}` of at least `{enough(needed)}`"
        for name, needed, available in wanted
        if needed > available
    )


def _without_bank(fits: Fits, refit: Refit, scarce: str) -> tuple[str, str] | None:
    """The field to blame and how to do with this host, if that is possible: a wish alone may ask for more."""
    for field, why in (
        ("experts.slots", "the device holds every expert"),
        ("experts.placement", "the device holds every expert"),
        ("cache.type", "prefixes are not cached then"),
    ):
        if asked(fits.profile, field) != "auto" and weighed(
            refit, changed(fits.profile, field, "auto")
        ):
            return field, f"set `{field}` to `auto`: {why}"
    remedies = [*_narrow_keys(fits, refit)]
    largest = largest_context(fits, refit)
    if largest:
        remedies.append(
            f"set `serving.context` to at most {largest}, where every expert fits the device"
        )
    return (scarce, ", or ".join(remedies)) if remedies else None


def _refusal(field: str, message: str, remedies: Iterable[str], shortage: Shortage) -> Refusal:
    hint = f"{', or '.join(remedies)}; {_ledger(shortage)}"
    return Refusal(field=field, message=message, hint=hint, code=CODE)


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
