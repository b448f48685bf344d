"""A shortage in words: what is needed, what there is, the field that asks for it, and the largest value that fits."""

from collections.abc import Callable
from dataclasses import replace

from firmtoken.compiler.errors import Refusal
from firmtoken.compiler.fits import Fit, Fits, Shortage
from firmtoken.compiler.frontier import FLOORS, largest_fit, last_resident
from firmtoken.compiler.passes.bound_batches import bound_batches, graph_batch_sizes
from firmtoken.compiler.quantities import enough, exactly, shorthand, size

CODE = "does_not_fit"
NEGLIGIBLE = 100
"""A line below this part of the whole is one of the others."""


def refuse(fits: Fits, shortage: Shortage, most: int) -> Refusal:
    """The one refusal for a shortage: what was asked explicitly is blamed first, then the machine."""
    context = _asked_context(fits, most)
    if shortage.side == "host":
        return _refuse_host(fits, shortage, most, context)
    freed = _with_experts(fits, slots="auto")
    if fits.profile.experts.slots != "auto" and isinstance(freed.best(context), Fit):
        return _refuse_slots(fits, shortage, context)
    freed = _with_serving(fits, pool="auto")
    if fits.profile.serving.pool != "auto" and isinstance(freed.best(context), Fit):
        return _refuse_pool(fits, shortage, freed)
    largest = largest_fit(fits, most, fits.placements)
    if fits.profile.experts.placement == "resident":
        return _refuse_resident(fits, shortage, largest, context)
    if isinstance(largest, Fit) and fits.profile.serving.context != "auto":
        return _refuse_context(fits, shortage, largest)
    return _refuse_device(fits, shortage, largest, context)


def _with_experts(fits: Fits, **values: str | int) -> Fits:
    experts = fits.profile.experts.model_copy(update=values)
    return fits.of(fits.profile.model_copy(update={"experts": experts}))


def _with_serving(fits: Fits, **values: str) -> Fits:
    serving = fits.profile.serving.model_copy(update=values)
    return fits.of(fits.profile.model_copy(update={"serving": serving}))


def _asked_context(fits: Fits, most: int) -> int:
    """The context as asked, or the smallest that would be settled for."""
    asked, page = fits.profile.serving.context, fits.cache.page_size
    if isinstance(asked, int):
        return min(asked, most)
    if asked == "max":
        return min(most, page)
    # `auto` halves its floor while a page is left of it.
    floor = min(most, FLOORS[fits.profile.serving.prefer])
    while floor // 2 >= page:
        floor //= 2
    return floor


def _refuse_host(fits: Fits, shortage: Shortage, most: int, context: int) -> Refusal:
    roomy = _with_roomy_host(fits)
    found = roomy.best(context)
    host = fits.hosts[found.placement]
    # What the device would hold decides what the host must: all experts on it need no bank.
    lacking = host if isinstance(host, Shortage) else shortage
    remedy = _host_remedy(fits, lacking)
    if isinstance(found, Shortage):
        # A larger host alone would only meet the next refusal.
        device = refuse(roomy, found, most)
        return replace(device, hint=f"{remedy} as well; {device.hint}")
    bank = next((part for part in lacking.lines if part.name == "bank"), None)
    what = f"the bank of {bank.count:,} experts and the engine" if bank else "the engine"
    pinned = lacking.available != fits.machine.host_memory
    verb = "must be pinned" if pinned else "are needed"
    field = "hardware.host.pinnable" if pinned else "hardware.host.memory"
    other = _without_bank(fits, most, context, field)
    if other is not None:
        field, instead = other
        remedy = f"{instead}, or {remedy}"
    return Refusal(
        field=field,
        message=f"the host is too small for {what}: {exactly(lacking.needed)} {verb}, "
        f"there are {exactly(lacking.available)}",
        hint=remedy,
        code=CODE,
    )


def _host_remedy(fits: Fits, lacking: Shortage) -> str:
    """What the host must have: of memory, and of memory that can be pinned."""
    machine = fits.machine
    total = sum(part.bytes for part in lacking.lines)
    pinned = sum(part.bytes for part in lacking.lines if part.name != "process")
    wanted = (
        ("memory", total, machine.host_memory),
        ("pinnable", pinned, machine.pinnable),
    )
    return "it takes " + " and ".join(
        f"`hardware.host.{name}` of at least `{enough(needed)}`"
        for name, needed, available in wanted
        if needed > available
    )


def _without_bank(fits: Fits, most: int, context: int, scarce: str) -> tuple[str, str] | None:
    """The field to blame and how to do without a bank, if that is possible: a wish alone may ask for one."""
    for name in ("slots", "placement"):
        freed = _with_experts(fits, **{name: "auto"})
        asked = fits.profile.experts.model_dump()[name]
        if asked != "auto" and isinstance(freed.best(context), Fit):
            return (
                f"experts.{name}",
                f"set `experts.{name}` to `auto`: the device holds every expert",
            )
    resident = last_resident(fits, most)
    if resident is None:
        return None
    return (
        scarce,
        f"set `serving.context` to at most {resident.context}, where every expert fits the device",
    )


def _with_roomy_host(fits: Fits) -> Fits:
    machine = replace(fits.machine, host_memory=2**62, pinnable=2**62)
    return Fits(fits.profile, fits.facts, fits.batches, fits.cache, fits.candidates, machine)


def _with_requests(fits: Fits, requests: int) -> Fits:
    # Activations stay as they are laid out for more requests: a little too large, never too small.
    batches = replace(
        fits.batches, max_num_seqs=requests, graph_batch_sizes=graph_batch_sizes(requests)
    )
    return Fits(fits.profile, fits.facts, batches, fits.cache, fits.candidates, fits.machine)


def _refuse_slots(fits: Fits, shortage: Shortage, context: int) -> Refusal:
    most = _most_slots(fits, context)
    fewer = f"at most {most}, or to " if most else ""
    return Refusal(
        field="experts.slots",
        message=_needs(shortage, f"`{fits.profile.experts.slots}` slots beside this context"),
        hint=f"set `experts.slots` to {fewer}`auto`; {_ledger(shortage)}",
        code=CODE,
    )


def _most_slots(fits: Fits, context: int) -> int:
    """The most slots that may be asked for, 0 for none: more than `auto` takes, which keeps room for a longer span."""
    asked = fits.profile.experts.slots
    assert asked != "auto", "only a number can be too large"
    return _most(
        range(fits.facts.num_layers, asked),
        lambda slots: _with_experts(fits, slots=slots).best(context),
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
    if not remedies:
        remedies.append(f"it takes {_larger_device(fits, shortage)}")
    return Refusal(
        field="experts.placement",
        message=_needs(shortage, f"all {fits.facts.total_experts:,} experts"),
        hint=f"{', or '.join(remedies)}; {_ledger(shortage)}",
        code=CODE,
    )


def _refuse_pool(fits: Fits, shortage: Shortage, freed: Fits) -> Refusal:
    asked = fits.profile.serving.pool
    assert asked != "auto", "only a number can be too large"
    largest = largest_fit(freed, asked, freed.placements)
    most = largest.pool if isinstance(largest, Fit) else 0
    context = fits.profile.serving.context
    held = fits.facts.max_positions if context == "max" else context
    # A pool must hold what one request may, as it was asked for.
    smaller = "" if isinstance(held, int) and most < held else f"at most {most}, or to "
    return Refusal(
        field="serving.pool",
        message=_needs(shortage, f"a pool of `{asked}` tokens"),
        hint=f"set `serving.pool` to {smaller}`auto`; {_ledger(shortage)}",
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


def _refuse_device(
    fits: Fits, shortage: Shortage, largest: Fit | Shortage, context: int
) -> Refusal:
    least = largest if isinstance(largest, Shortage) else shortage
    requests = _most_requests(fits, context)
    field, what = fits.machine.memory_field, "even the smallest plan"
    larger = f"it takes {_larger_device(fits, shortage)}"
    if least.needed != shortage.needed:
        larger = f"{larger} for this context"
    if requests:
        field, what, least = "serving.requests", f"`{fits.requests}` requests", shortage
        larger = f"set `serving.requests` to at most {requests}, or {larger}"
    return Refusal(
        field=field,
        message=_needs(least, what),
        hint=f"{larger}; {_ledger(least)}",
        code=CODE,
    )


def _larger_device(fits: Fits, shortage: Shortage) -> str:
    needed = shortage.needed + fits.machine.reserve
    least = f"`{fits.machine.memory_field}` of at least `{enough(needed)}`"
    chunk = fits.batches.moe_chunk
    if _chunk_there(fits, needed) == chunk:
        return least
    return f"{least} with `schedule.prefill_chunk: {chunk}` (`auto` takes longer ones there)"


def _chunk_there(fits: Fits, memory: int) -> int:
    """The chunk that a device of that size would get."""
    hardware = fits.profile.hardware
    if hardware.gpu is None:
        return fits.batches.moe_chunk
    gpu = hardware.gpu.model_copy(update={"memory": memory})
    larger = hardware.model_copy(update={"gpu": gpu})
    profile = fits.profile.model_copy(update={"hardware": larger})
    return bound_batches(profile, fits.facts).moe_chunk


def _most_requests(fits: Fits, context: int) -> int:
    """The most requests beside which the context fits; 0 if it fits beside none."""
    return _most(
        range(1, fits.requests), lambda requests: _with_requests(fits, requests).best(context)
    )


def _most(numbers: range, weigh: Callable[[int], Fit | Shortage]) -> int:
    """The largest of `numbers` that fits, where all below one that fits do too; 0 if none does."""
    low, high = numbers.start - 1, numbers.stop - 1
    while low < high:
        middle = (low + high + 1) // 2
        if isinstance(weigh(middle), Fit):
            low = middle
        else:
            high = middle - 1
    return low if low in numbers else 0


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
