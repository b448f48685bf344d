"""`advise`: the cheapest changes of a profile and what each would buy, found by splitting memory again."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.facts import Split
from firmtoken.compiler.figures import chosen_row
from firmtoken.compiler.plan import Advice, FrontierRow
from firmtoken.compiler.quantities import percent, rate, shorthand
from firmtoken.compiler.wishes import changed
from firmtoken.schema.profile import Profile

MOST_ADVICE = 3
LEAST_GAIN = 1.03
"""A change that buys less is no advice."""
MOST_EVICTED = 0.1
"""Share of all experts that a longer context may push off the device and still be advice."""
HEADLESS_RESERVE = 2**28

Replan = Callable[[Profile], Split]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A profile that differs in one value."""

    words: str
    set: str
    price: str
    profile: Profile


def advise(profile: Profile, replan: Replan) -> tuple[Advice, ...]:
    """Up to three changes that help, the cheapest first; none where nothing is short."""
    if profile.hardware.gpu is None:
        return ()
    now = replan(profile)
    if now.placement == "resident" and now.limited_by == "model":
        return ()
    found: list[Advice] = []
    for change in _changes(profile, now):
        if len(found) == MOST_ADVICE:
            break
        try:
            then = replan(change.profile)
        except PlanError:
            continue
        gain = _gain(now, then)
        if gain:
            found.append(
                Advice(change=change.words, set=change.set, gain=gain, because=change.price)
            )
    return tuple(found)


def _changes(profile: Profile, now: Split) -> Iterator[Change]:
    # Cheapest first: what costs precision of keys before what costs experts, context or requests.
    if _kv_dtype(now) == "bf16":
        yield Change(
            words="keep keys and values in FP8",
            set="cache.kv_dtype=fp8",
            price="half the bytes a token; the checkpoint's own measure of accuracy applies",
            profile=changed(profile, "cache.kv_dtype", "fp8"),
        )
    gpu = profile.hardware.gpu
    if gpu is not None and gpu.reserve > HEADLESS_RESERVE:
        yield Change(
            words="run the desktop on another device",
            set="hardware.gpu.reserve=0.25GiB",
            price="nothing else may use this device then",
            profile=changed(profile, "hardware.gpu.reserve", HEADLESS_RESERVE),
        )
    yield from _contexts(profile, now)
    if profile.serving.requests > 1:
        half = profile.serving.requests // 2
        yield Change(
            words="run one request at a time" if half == 1 else f"run {half} requests at once",
            set=f"serving.requests={half}",
            price="the others wait in the queue",
            profile=changed(profile, "serving.requests", half),
        )


def _contexts(profile: Profile, now: Split) -> Iterator[Change]:
    here = chosen_row(now.frontier)
    pool = profile.serving.pool
    longer = [
        row
        for row in now.frontier
        if row.context >= 2 * here.context and (pool == "auto" or row.context <= pool)
    ]
    if longer and here.resident_fraction - longer[0].resident_fraction < MOST_EVICTED:
        yield _context_change(profile, longer[0], "raise", _price(here, longer[0]))
    shorter = [row for row in now.frontier if row.context <= here.context // 2]
    if shorter and shorter[-1].resident_fraction > here.resident_fraction:
        yield _context_change(profile, shorter[-1], "lower", "longer requests are refused")


def _price(here: FrontierRow, longer: FrontierRow) -> str:
    if longer.resident_fraction == here.resident_fraction:
        return "as many experts stay resident"
    return (
        f"experts {percent(here.resident_fraction)} -> {percent(longer.resident_fraction)}, "
        f"decode {rate(here.decode_tokens_per_s)} -> {rate(longer.decode_tokens_per_s)} tok/s"
    )


def _context_change(profile: Profile, row: FrontierRow, verb: str, price: str) -> Change:
    return Change(
        words=f"{verb} the context to {row.context:,} tokens",
        set=f"serving.context={shorthand(row.context)}",
        price=price,
        profile=changed(profile, "serving.context", row.context),
    )


def _kv_dtype(split: Split) -> str:
    return chosen_row(split.frontier).kv_dtype


def _gain(now: Split, then: Split) -> str:
    before, after = chosen_row(now.frontier), chosen_row(then.frontier)
    parts = []
    if after.context > before.context * LEAST_GAIN:
        parts.append(f"context {before.context:,} -> {after.context:,}")
    elif then.pool > now.pool * LEAST_GAIN and then.context == now.context:
        parts.append(f"pool {now.pool:,} -> {then.pool:,} tokens")
    if after.resident_fraction > before.resident_fraction + 0.005:
        parts.append(
            f"experts {percent(before.resident_fraction)} -> {percent(after.resident_fraction)}"
        )
    if after.decode_tokens_per_s > before.decode_tokens_per_s * LEAST_GAIN:
        parts.append(
            f"decode {rate(before.decode_tokens_per_s)} -> {rate(after.decode_tokens_per_s)} tok/s"
        )
    return ", ".join(parts)
