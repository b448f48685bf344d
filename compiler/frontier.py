"""The frontier: context against resident experts against predicted speed, and what `auto` picks from it (D16)."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

from firmtoken.compiler.fits import Fit, Fits, Shortage
from firmtoken.compiler.plan import FrontierRow
from firmtoken.compiler.speed import Speed, speed

FIRST_ROW = 8 * 1024
STEP = 4 * 1024
MOST_CANDIDATES = 64

EXPONENTS = {"speed": 0.05, "balanced": 0.15, "context": 0.5}
"""What a doubling of context may cost: 3.5, 11 or 41 % of speed."""
FLOORS = {"speed": 32 * 1024, "balanced": 64 * 1024, "context": 64 * 1024}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """What `auto` chose."""

    fit: Fit
    floor: int
    """The floor that held."""
    wanted_floor: int


def largest_fit(fits: Fits, most: int, placements: tuple[str, ...]) -> Fit | Shortage:
    """The largest context up to `most` tokens that fits under one of the placements."""

    def weigh(context: int) -> Fit | Shortage:
        found: Fit | Shortage | None = None
        for placement in placements:
            found = fits.weigh(context, placement)
            if isinstance(found, Fit):
                return found
        assert found is not None, "a profile always allows one placement"
        return found

    found = weigh(most)
    if isinstance(found, Fit):
        return found
    # Only whole pages differ, so the search is over pages.
    page = fits.cache.page_size
    low, high = 0, most // page
    best: Fit | Shortage = found
    while low < high:
        middle = (low + high + 1) // 2
        found = weigh(middle * page)
        if isinstance(found, Fit):
            low, best = middle, found
        else:
            high = middle - 1
    return best if isinstance(best, Fit) else weigh(min(page, most))


def longest_context(fits: Fits) -> int:
    """min(the model's positions, the pool if one is asked for) (D2)."""
    pool, own = fits.profile.serving.pool, fits.facts.max_positions
    return own if pool == "auto" else min(pool, own)


def least_context(fits: Fits) -> int:
    """The context as asked, or the least that `max` and `auto` would settle for."""
    asked, most = fits.profile.serving.context, longest_context(fits)
    if isinstance(asked, int):
        return min(asked, most)
    return min(most, fits.cache.page_size)


def floors(fits: Fits, most: int) -> Iterator[int]:
    """What `auto` starts from: its floor, then half of that as long as a page is left, at last a page."""
    floor, page = min(most, FLOORS[fits.profile.serving.prefer]), fits.cache.page_size
    while floor > page:
        yield floor
        floor //= 2
    yield min(most, page)


def pick_context(fits: Fits, most: int) -> Pick | Shortage:
    """The context with the best trade above the floor; the floor is halved until it fits."""
    prefer = fits.profile.serving.prefer
    wanted, floor = min(most, FLOORS[prefer]), _floor_that_fits(fits, most)
    if isinstance(floor, Shortage):
        return floor
    candidates = {floor, most, *_grid(floor, most)}
    resident = last_resident(fits, most)
    if resident is not None and resident.context > floor:
        candidates.add(resident.context)
    scored = [
        (score(fits, fit, EXPONENTS[prefer]), context, fit)
        for context in sorted(candidates)
        if isinstance(fit := fits.best(context), Fit)
    ]
    _, _, best = max(scored, key=lambda entry: entry[:2])
    return Pick(fit=best, floor=floor, wanted_floor=wanted)


def _floor_that_fits(fits: Fits, most: int) -> int | Shortage:
    found: Fit | Shortage | None = None
    for floor in floors(fits, most):
        found = fits.best(floor)
        if isinstance(found, Fit):
            return floor
    assert isinstance(found, Shortage), "there is always a floor"
    return found


def _grid(floor: int, most: int) -> range:
    step = STEP * max(1, -(-most // (STEP * MOST_CANDIDATES)))
    return range(-(-floor // step) * step, most + 1, step)


def score(fits: Fits, fit: Fit, exponent: float) -> float:
    """Logarithm of context to the `exponent` over the seconds of a turn, alone and with all requests."""
    found = fit_speed(fits, fit)
    return exponent * log(fit.context) - (log(found.turn_s) + log(found.turn_s_full)) / 2


def fit_speed(fits: Fits, fit: Fit) -> Speed:
    """Predicted speed of a fit."""
    return speed(fits.costs[fit.placement], fits.residency(fit), fits.requests)


def last_resident(fits: Fits, most: int) -> Fit | None:
    """The largest context at which every expert is resident, if there is one and it may be."""
    if "resident" not in fits.placements:
        return None
    found = largest_fit(fits, most, ("resident",))
    return found if isinstance(found, Fit) else None


def frontier(fits: Fits, chosen: Fit, most: int) -> tuple[FrontierRow, ...]:
    """Powers of two and 3 x 2^n from 8k, the last resident context, the chosen one, the largest that fits."""
    reasons = dict.fromkeys(_landmarks(most), "")
    reasons.setdefault(most, "")
    resident = last_resident(fits, most)
    if resident is not None and resident.context < most:
        reasons[resident.context] = "the last with every expert resident"
    largest = largest_fit(fits, most, fits.placements)
    if isinstance(largest, Fit) and largest.context < most:
        reasons[largest.context] = "the largest that fits"
    reasons.setdefault(chosen.context, "")
    rows = []
    for context in sorted(reasons):
        fit = chosen if context == chosen.context else fits.best(context)
        if isinstance(fit, Fit):
            rows.append(_row(fits, fit, reasons[context], chosen=fit is chosen))
    return tuple(rows)


def _landmarks(most: int) -> list[int]:
    found = []
    power = FIRST_ROW
    while power <= most:
        found += [context for context in (power, power // 2 * 3) if context <= most]
        power *= 2
    return found


def _row(fits: Fits, fit: Fit, reason: str, *, chosen: bool) -> FrontierRow:
    predicted = fit_speed(fits, fit)
    fraction = fits.residency(fit).fraction
    return FrontierRow(
        context=fit.context,
        pool=fit.pool,
        kv_dtype=fits.cache.kv_dtype,
        slots=fit.slots,
        slots_per_layer=min(fit.experts.slots_per_layer),
        staging_slots=fit.experts.staging_slots,
        resident_fraction=fraction,
        hit_rate=predicted.hit_rate,
        decode_tokens_per_s=predicted.decode_tokens_per_s,
        decode_tokens_per_s_full=predicted.decode_tokens_per_s_full,
        prefill_tokens_per_s=predicted.prefill_tokens_per_s,
        ttft_s=predicted.ttft_s,
        turn_s=predicted.turn_s,
        free_bytes=fit.device.free,
        chosen=chosen,
        because=reason or _residency_words(fits, fit),
    )


def _residency_words(fits: Fits, fit: Fit) -> str:
    if fit.placement == "resident":
        return "every expert resident"
    return f"{min(fit.experts.slots_per_layer)} of {fits.facts.experts_per_layer} experts a layer"
