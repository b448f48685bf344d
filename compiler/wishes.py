"""What a profile asks of memory, with one value changed: the questions that a refusal, a warning or advice puts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.fits import Fit, Fits
from firmtoken.compiler.frontier import least_context, longest_context
from firmtoken.compiler.passes.bound_batches import CHUNK_UNIT, graph_batch_sizes
from firmtoken.schema.profile import Profile
from firmtoken.schema.section import Section

S = TypeVar("S", bound=Section)
Refit = Callable[[Profile], Fits]
"""The bench of a changed profile, with launches and layouts of its own; raises `PlanError` where it has none."""


def asked(profile: Profile, field: str) -> object:
    """What the profile says at a dotted path."""
    found: object = profile
    for name in field.split("."):
        found = getattr(found, name)
    return found


def changed(profile: Profile, field: str, value: object) -> Profile:
    """The profile with another value at a dotted path."""
    return _replaced(profile, field.split("."), value)


def _replaced(section: S, names: Sequence[str], value: object) -> S:
    name, *inner = names
    if inner:
        value = _replaced(getattr(section, name), inner, value)
    return section.model_copy(update={name: value})


def weighed(refit: Refit, profile: Profile) -> Fit | None:
    """The least that this profile would settle for, if that fits."""
    try:
        fits = refit(profile)
    except PlanError:
        return None
    found = fits.best(least_context(fits))
    return found if isinstance(found, Fit) else None


def most_of(numbers: range, fit: Callable[[int], bool]) -> int:
    """The largest of `numbers` that fits, where all below one that fits do too; 0 if none does."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high + 1) // 2
        if fit(numbers[middle - 1]):
            low = middle
        else:
            high = middle - 1
    return numbers[low - 1] if low else 0


def largest_context(fits: Fits, refit: Refit) -> int:
    """The largest context that fits, all else as asked; 0 if none does."""
    # Pages and launches grow in such steps; both are whole up to the end of one.
    step = min(fits.cache.page_size, CHUNK_UNIT)
    most = longest_context(fits)

    def fit(steps: int) -> bool:
        context = max(2, min(steps * step, most))
        return weighed(refit, changed(fits.profile, "serving.context", context)) is not None

    # Where the least does not fit, nothing does: that is the cheaper question.
    steps = most_of(range(1, -(-most // step) + 1), fit) if fit(1) else 0
    return max(2, min(steps * step, most)) if steps else 0


def most_requests(fits: Fits, refit: Refit) -> int:
    """The most requests beside which what was asked fits; 0 if it fits beside none."""

    def fit(requests: int) -> bool:
        wish = changed(fits.profile, "serving.requests", requests)
        return weighed(refit, wish) is not None

    # With the launches of all requests a few less fit than with launches of their own, which are dear to lay out.
    low = most_of(range(1, fits.requests), lambda requests: _fits_at_once(fits, requests))
    ahead = 1
    while low + ahead < fits.requests and fit(low + ahead):
        low, ahead = low + ahead, 2 * ahead
    return most_of(range(low + 1, min(low + ahead, fits.requests)), fit) or low


def _fits_at_once(fits: Fits, requests: int) -> bool:
    batches = replace(
        fits.batches, max_num_seqs=requests, graph_batch_sizes=graph_batch_sizes(requests)
    )
    fewer = Fits(
        changed(fits.profile, "serving.requests", requests),
        fits.facts,
        batches,
        fits.cache,
        fits.candidates,
        fits.machine,
    )
    return isinstance(fewer.best(least_context(fewer)), Fit)
