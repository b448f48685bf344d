"""What it means that two plans differ: context, residency, speed and RAM in sentences, each with its cause."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from firmtoken.compiler.figures import same_conversation
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.quantities import count, percent, rate, size, wait

SAME = 0.005
"""Numbers that differ by less are called equal."""


def meaning(one: Plan, two: Plan) -> tuple[str, ...]:
    """Sentences about `two` beside `one`; profiles of one name are told apart as the first and the second."""
    names = one.profile.name, two.profile.name
    if names[0] == names[1]:
        names = ("the first", "the second")
    return (
        *_context(one, two, names),
        *_residency(one, two, names),
        *_decode(one, two, names),
        *_prompts(one, two, names),
        *_ram(one, two, names),
    )


Names = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What else differs, and whether that alone would make the second plan better."""

    text: str
    helps: bool


def _bytes(number: float) -> str:
    return size(round(number)) if number else "nothing"


def _took(stream_s: float) -> str:
    return wait(stream_s) if stream_s else "no time"


def _billions(number: float) -> str:
    return f"{number / 1e9:,.4g}"


def _trillions(number: float) -> str:
    return f"{number / 1e12:,.4g}"


def _context(one: Plan, two: Plan, names: Names) -> Iterator[str]:
    before, after = one.context.effective, two.context.effective
    if before == after:
        yield f"context: both hold {after:,} tokens a request"
    else:
        yield f"context: {names[1]} holds {_times(after, before)} the context of {names[0]}, {after:,} tokens a request"
    pools = one.kv_cache.tokens, two.kv_cache.tokens
    if pools[0] != pools[1]:
        yield (
            f"requests: all together hold {_times(pools[1], pools[0])} as many tokens, {pools[1]:,} instead of "
            f"{pools[0]:,}{_at_once(one, two)}"
        )


def _at_once(one: Plan, two: Plan) -> str:
    told = one.estimates.conversation, two.estimates.conversation
    if not same_conversation(one, two) or told[0].at_once == told[1].at_once:
        return ""
    agents = count(told[1].at_once, "agent")
    prompt = f"{told[1].prompt_tokens:,}"
    return f": {agents} with prompts of {prompt} run at once instead of {told[0].at_once:,}"


def _residency(one: Plan, two: Plan, names: Names) -> Iterator[str]:
    before, after = one.experts, two.experts
    if before.placement == after.placement == "resident":
        yield "experts: both keep all on the device"
        return
    shares = percent(before.resident_fraction), percent(after.resident_fraction)
    if shares[0] == shares[1]:
        yield f"experts: both keep {shares[1]} of them on the device"
        return
    sizes = [plan.experts.total * plan.experts.slot_bytes for plan in (one, two)]
    causes = (
        _cause(
            "there are {} of device memory instead of {}",
            *(plan.memory.device.budget for plan in (one, two)),
            more_helps=True,
        ),
        _cause("all experts together take {} instead of {}", *sizes, more_helps=False),
        _cause(
            "keys and values take {} instead of {}",
            _line(one, "kv_pages"),
            _line(two, "kv_pages"),
            more_helps=False,
        ),
    )
    told = f"experts: {names[1]} keeps {shares[1]} of them on the device instead of {shares[0]}"
    yield told + _because(causes, better=after.resident_fraction > before.resident_fraction)


def _decode(one: Plan, two: Plan, names: Names) -> Iterator[str]:
    was, now = (plan.estimates.decode_tokens_per_s for plan in (one, two))
    if abs(now / was - 1) < SAME:
        yield f"decode: both write {rate(now)} tokens/s"
        return
    moved = [plan.estimates.bytes_per_token for plan in (one, two)]
    shares = [plan.experts.resident_fraction for plan in (one, two)]
    causes = (
        _cause(
            "{} instead of {} of the experts are on the device",
            *shares,
            more_helps=True,
            words=percent,
        ),
        _cause(
            "each token fetches {} from RAM instead of {}",
            *(each.link for each in moved),
            more_helps=False,
        ),
        _cause(
            "each token reads {} of the device instead of {}",
            *(each.device for each in moved),
            more_helps=False,
        ),
        _cause(
            "the device's memory gives {} GB/s instead of {}",
            *(_device_number(plan, "bandwidth") for plan in (one, two)),
            more_helps=True,
            words=_billions,
        ),
        _cause(
            "its lanes decode weights at {} TFLOP/s of fp32 instead of {}",
            *(_device_number(plan, "flops", "fp32") for plan in (one, two)),
            more_helps=True,
            words=_trillions,
        ),
        _captured(one, two),
    )
    yield f"decode: {names[1]} writes {_change(was, now)}{_because(causes, better=now > was)}"


def _captured(one: Plan, two: Plan) -> Cause | None:
    before, after = (plan.programs.decode.captured for plan in (one, two))
    if before == after:
        return None
    how = "its steps are replayed as graphs" if after else "its ops are launched one by one"
    return Cause(text=how, helps=after)


def _prompts(one: Plan, two: Plan, names: Names) -> Iterator[str]:
    was, now = (plan.estimates.prefill_tokens_per_s for plan in (one, two))
    if abs(now / was - 1) < SAME:
        yield f"prompts: both read {rate(now)} tokens/s{_first_words(one, two)}"
        return
    causes = (
        _cause(
            "missing experts take {} a pass over a prompt instead of {}",
            *(plan.estimates.bank_stream_s for plan in (one, two)),
            more_helps=False,
            words=_took,
        ),
        _cause(
            "the device computes {} TFLOP/s instead of {}",
            *(_device_number(plan, "flops", "bf16") for plan in (one, two)),
            more_helps=True,
            words=_trillions,
        ),
        _overlap(one, two),
        Cause(text="the models differ", helps=now > was)
        if one.model.name != two.model.name
        else None,
    )
    yield (
        f"prompts: {names[1]} reads them {_change(was, now)}{_because(causes, better=now > was)}"
        f"{_first_words(one, two)}"
    )


def _overlap(one: Plan, two: Plan) -> Cause | None:
    """Only where both fetch experts does it matter whether that happens beside compute."""
    streamed = all(plan.estimates.bank_stream_s for plan in (one, two))
    if not streamed or one.streams.layout == two.streams.layout:
        return None
    beside = two.streams.layout == "two"
    return Cause(
        text=f"experts are copied {'beside' if beside else 'between'} compute", helps=beside
    )


def _first_words(one: Plan, two: Plan) -> str:
    before, after = one.estimates.conversation, two.estimates.conversation
    if not same_conversation(one, two):
        return ""
    prompt = _instead(wait(before.prompt_s), wait(after.prompt_s))
    turn = _instead(wait(before.turn_s), wait(after.turn_s))
    return (
        f"; first word of a new prompt of {after.prompt_tokens:,} after {prompt}, "
        f"of a next turn after {turn}"
    )


def _ram(one: Plan, two: Plan, names: Names) -> Iterator[str]:
    was, now = (plan.memory.host.total for plan in (one, two))
    if abs(now / was - 1) < SAME:
        yield f"RAM: both need {size(now)}"
    else:
        yield f"RAM: {names[1]} needs {size(now)} instead of {size(was)}"


def _cause(
    sentence: str,
    before: float,
    after: float,
    *,
    more_helps: bool,
    words: Callable[[float], str] = _bytes,
) -> Cause | None:
    """A number that differs, the later one first; `None` where it does not, or not enough to be a cause."""
    if abs(after - before) <= SAME * max(before, after):
        return None
    return Cause(
        text=sentence.format(words(after), words(before)), helps=(after > before) == more_helps
    )


def _because(causes: Sequence[Cause | None], *, better: bool) -> str:
    """What explains the change, and what works against it."""
    found = [cause for cause in causes if cause is not None]
    told = ""
    for word, texts in (
        ("because", [cause.text for cause in found if cause.helps == better]),
        ("although", [cause.text for cause in found if cause.helps != better]),
    ):
        if texts:
            told += f", {word} {_listed(texts)}"
    return told


def _listed(texts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def _device_number(plan: Plan, key: str, format_: str = "") -> float:
    device = plan.hardware["cpu"] or plan.hardware["gpu"]
    assert isinstance(device, dict), "the schema asks for `gpu` or `cpu`"
    found = device[key]
    return float(found[format_] if isinstance(found, dict) else found)


def _line(plan: Plan, name: str) -> int:
    return sum(line.bytes for line in plan.memory.device.lines if line.name == name)


def _instead(before: str, after: str) -> str:
    return f"{after} in both" if before == after else f"{after} instead of {before}"


def _times(after: float, before: float) -> str:
    """`4.0 x`, `36 x`."""
    ratio = after / before
    if ratio >= 10:
        return f"{ratio:.0f} x"
    return f"{ratio:.1f} x" if ratio >= 1 else f"{ratio:.2g} x"


def _change(was: float, now: float) -> str:
    """`12 % slower, 60 instead of 68 tokens/s`."""
    ratio = now / was
    if ratio >= 2:
        change = f"{ratio:.1f} x faster"
    elif ratio > 1:
        change = f"{100 * (ratio - 1):.0f} % faster"
    else:
        change = f"{100 * (1 - ratio):.0f} % slower"
    return f"{change}, {rate(now)} instead of {rate(was)} tokens/s"
