"""What else was open at the four choices of a plan, and its price: the profile compiled again with that one value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.figures import changes, chosen_row, unchanged_speeds
from firmtoken.compiler.pipeline import draft_plan
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.quantities import count, shorthand, size, wait
from firmtoken.compiler.wishes import changed
from firmtoken.schema.contradictions import contradictions
from firmtoken.schema.frozen_map import FrozenMap
from firmtoken.schema.profile import Profile
from firmtoken.schema.validation import profile_values

CACHE_TYPES = ("none", "radix", "hybrid_radix")
KV_DTYPES = ("fp8", "bf16")
NO_DIFFERENCE = "the estimate sees no difference"
NO_FIGURE = "no figure changes"
PATHS = {
    "kernels": "kernels",
    "kv_cache": "kv_cache",
    "streams": "streams",
    "memory": "memory",
    "context": "memory",
    "experts": "memory",
}
"""First step of a plan path -> the choice that it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One other value of the profile."""

    set: str
    """What stands behind `--set`."""
    price: str
    """What changes, in figures; or why it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the four choices."""

    name: str
    """The plan's path."""
    chosen: str
    because: str
    alternatives: tuple[Alternative, ...]
    otherwise: str = ""
    """Said where there is no alternative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A field, another value, and what is known of it that no figure says."""

    field: str
    value: str | int
    note: str = ""
    shown: str = ""
    """The value as a profile writes it, where that differs."""


def four_choices(profile: Profile, plan: Plan, cards: Sequence[KernelCard]) -> tuple[Choice, ...]:
    """All four, every alternative weighed."""
    return tuple(_choice(name, "", profile, plan, cards) for name in dict.fromkeys(PATHS.values()))


def choice_at(
    path: str, profile: Profile, plan: Plan, cards: Sequence[KernelCard]
) -> Choice | None:
    """The choice that a plan path is about, a kernel's with the alternatives of that op alone; `None` if none is."""
    first, _, rest = path.partition(".")
    name = PATHS.get(first)
    if name is None or (rest and name != "kernels"):
        return None
    return _choice(name, rest, profile, plan, cards)


def _choice(
    name: str, part: str, profile: Profile, plan: Plan, cards: Sequence[KernelCard]
) -> Choice:
    match name:
        case "kernels":
            return _kernels(profile, plan, cards, part)
        case "kv_cache":
            return _cache(profile, plan, cards)
        case "streams":
            return _streams(profile, plan, cards)
        case _:
            return _memory(profile, plan, cards)


def _kernels(profile: Profile, plan: Plan, cards: Sequence[KernelCard], part: str) -> Choice:
    op, _, phase = part.partition(".")
    wishes = tuple(
        wish for wish in _other_kernels(plan, cards) if not part or _is_about(wish.field, op, phase)
    )
    ops = len({row.op for row in plan.kernels})
    return Choice(
        name="kernels",
        chosen=f"{count(len(plan.kernels), 'kernel')} for {count(ops, 'op')} of the model",
        because="each has the best rank of those that can run here (`ft explain PROFILE kernels` says why); the "
        "estimate counts bytes and arithmetic, so only a measurement could tell kernels apart",
        alternatives=_weighed(wishes, profile, plan, cards, speeds=False),
        otherwise="no other kernel can run here",
    )


def _is_about(field: str, op: str, phase: str) -> bool:
    _, named, *phases = field.split(".")
    return named == op and (not phase or not phases or phases == [phase])


def _other_kernels(plan: Plan, cards: Sequence[KernelCard]) -> Iterator[Wish]:
    """Usable kernels that another was preferred to; one wish for both phases where both could use it.

    One that nothing launches yet is no choice beside one that runs.
    """
    planned = {(card.op, card.name) for card in cards if card.status == "planned"}
    phases: dict[tuple[str, str], set[str]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for row in plan.kernels:
        for rejected in row.rejected:
            runs = row.status == "planned" or (row.op, rejected.kernel) not in planned
            if rejected.usable and runs:
                phases.setdefault((row.op, rejected.kernel), set()).add(row.phase)
                reasons[row.op, rejected.kernel] = f"`{row.kernel}`: {row.because}"
    for (op, kernel), found in phases.items():
        both = {row.phase for row in plan.kernels if row.op == op} == found
        field = f"kernels.{op}" if both else f"kernels.{op}.{found.copy().pop()}"
        yield Wish(field=field, value=kernel, note=f"chosen is {reasons[op, kernel]}")


def _cache(profile: Profile, plan: Plan, cards: Sequence[KernelCard]) -> Choice:
    cache = plan.kv_cache
    notes = {"none": "nothing is kept, so a next turn is read from its first token"}
    wishes = (
        *(
            Wish(field="cache.type", value=kind, note=notes.get(kind, ""))
            for kind in CACHE_TYPES
            if kind != cache.type
        ),
        *(Wish(field="cache.kv_dtype", value=name) for name in KV_DTYPES if name != cache.dtype),
    )
    return Choice(
        name="kv_cache",
        chosen=f"cache type {cache.type}, keys and values in {cache.dtype}",
        because=cache.because,
        alternatives=_weighed(wishes, profile, plan, cards),
    )


def _streams(profile: Profile, plan: Plan, cards: Sequence[KernelCard]) -> Choice:
    wishes = []
    if plan.streams.layout == "two":
        wishes.append(Wish(field="streams.layout", value="single", note=_snapshot_note(plan)))
    elif profile.streams.layout == "single":
        wishes.append(Wish(field="streams.layout", value="auto"))
    captured = plan.programs.decode.captured
    if plan.device.kind == "cuda":
        note = "each launch of a decode step then comes from the host" if captured else ""
        wishes.append(Wish(field="graphs", value="off" if captured else "auto", note=note))
    launched = "decode steps replayed as graphs" if captured else "every op launched by itself"
    return Choice(
        name="streams",
        chosen=f"{count(len(plan.streams.names), 'stream')} ({', '.join(plan.streams.names)}), {launched}",
        because=plan.streams.because,
        alternatives=_weighed(tuple(wishes), profile, plan, cards),
        otherwise="nothing is copied beside compute, so a second stream would have nothing to do",
    )


def _snapshot_note(plan: Plan) -> str:
    """What a single stream costs that no figure counts."""
    link = plan.hardware.get("link")
    if not plan.kv_cache.snapshot_slots or not isinstance(link, dict):
        return ""
    state = plan.kv_cache.state_bytes_per_sequence
    return f"not counted: each snapshot ({size(state)}) holds up the step behind it, {wait(state / link['d2h'])}"


def _memory(profile: Profile, plan: Plan, cards: Sequence[KernelCard]) -> Choice:
    other = "offload" if plan.experts.placement == "resident" else "resident"
    wishes = (Wish(field="experts.placement", value=other), *_contexts(plan))
    share = f"{plan.experts.slots:,} of {plan.experts.total:,} experts on the device"
    return Choice(
        name="memory",
        chosen=f"{plan.context.effective:,} tokens of context, {share} ({plan.experts.placement})",
        because=f"{plan.context.because}; {plan.experts.because}",
        alternatives=_weighed(wishes, profile, plan, cards),
    )


def _contexts(plan: Plan) -> Iterator[Wish]:
    """The frontier's next row of at least twice the context, and the last of at most half."""
    here = chosen_row(plan.frontier).context
    longer = [row.context for row in plan.frontier if row.context >= 2 * here]
    shorter = [row.context for row in plan.frontier if row.context <= here // 2]
    for context in (*longer[:1], *shorter[-1:]):
        yield Wish(field="serving.context", value=context, shown=shorthand(context))


def _weighed(
    wishes: Sequence[Wish],
    profile: Profile,
    plan: Plan,
    cards: Sequence[KernelCard],
    *,
    speeds: bool = True,
) -> tuple[Alternative, ...]:
    """`speeds`: whether the estimate could tell these apart."""
    return tuple(
        Alternative(
            set=f"{wish.field}={wish.shown or wish.value}",
            price=_price(
                with_value(profile, wish.field, wish.value), wish.note, plan, cards, speeds=speeds
            ),
        )
        for wish in wishes
    )


def with_value(profile: Profile, field: str, value: str | int) -> Profile:
    """The profile with this one value."""
    first, _, key = field.partition(".")
    if first == "kernels":
        # A kernel's key may itself hold a dot: `attention.decode`.
        return changed(profile, first, FrozenMap({**profile.kernels, key: value}))
    return changed(profile, field, value)


def _price(
    other: Profile, note: str, plan: Plan, cards: Sequence[KernelCard], *, speeds: bool
) -> str:
    for _, fault in contradictions(profile_values(other)):
        return f"refused: {fault.message}"
    try:
        then = draft_plan(other, cards)
    except PlanError as error:
        return f"refused: {error.refusals[0].message}"
    found = changes(plan, then)
    parts = [", ".join(found) or (NO_DIFFERENCE if speeds else NO_FIGURE)]
    same = unchanged_speeds(plan, then)
    if found and same and speeds:
        parts.append(f"unchanged: {', '.join(same)}")
    return "; ".join((*parts, *([note] if note else ())))
