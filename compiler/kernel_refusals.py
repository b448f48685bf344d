"""Why an op has no kernel, or not the one that the profile names, in words: one refusal for one cause."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.errors import Refusal
from firmtoken.compiler.kernel_fitness import Launch, Unfit, faults, unfitness
from firmtoken.schema.diagnostic import listing

Used = tuple[str, str, str]
"""Op, phase, format of the operand that decides."""
MOST_OPS = 3
"""So many are named, the others counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The cards of one op and the launches that they are for."""

    cards: Sequence[KernelCard]
    avoided: Collection[str]
    launch: Launch

    def usable(self, used: Iterable[Used]) -> list[KernelCard]:
        """Cards that can run all of the launches, best first."""
        able = (
            card
            for card in self.cards
            if card.name not in self.avoided
            and not any(unfitness(card, phase, name, self.launch) for _, phase, name in used)
        )
        return sorted(able, key=lambda card: (card.rank, card.name))

    def to_propose(self, used: Iterable[Used]) -> list[str]:
        """Names of those that a hint may give: one that nothing launches yet is no way out where another is."""
        usable = self.usable(used)
        ready = [card for card in usable if card.status != "planned"]
        return [card.name for card in ready or usable]


def refuse_named(
    key: str, wanted: KernelCard, covered: Sequence[Used], kernels: Kernels
) -> Refusal | None:
    """The refusal of a kernel that `kernels.{key}` names for launches which it cannot run; `None` if it can."""
    # Its own phases come first: where it runs at all, the phase is what is wrong.
    ordered = sorted(covered, key=lambda used: used[1] not in wanted.phases)
    for _, phase, format_name in ordered:
        fault = next(faults(wanted, phase, format_name, kernels.launch), None)
        if fault is not None:
            return Refusal(
                field=f"kernels.{key}",
                message=f"`{wanted.name}` cannot be used for `{wanted.op}`: {fault.words}",
                hint=" or ".join(_instead(wanted, fault, covered, kernels)) or "remove this line",
                code="hazard" if fault.cause == "hazard" else "no_kernel",
            )
    return None


def _instead(
    wanted: KernelCard, fault: Unfit, covered: Sequence[Used], kernels: Kernels
) -> Iterator[str]:
    others = [name for name in kernels.to_propose(covered) if name != wanted.name]
    if others:
        yield f"use {' or '.join(f'`{name}`' for name in others)}"
    own = [used for used in covered if used[1] in wanted.phases]
    if fault.cause == "phase" and own:
        yield f"name it as `kernels.{wanted.op}.{own[0][1]}`"
    elif not others:
        yield from name_by_phase(covered, kernels)


def name_by_phase(covered: Sequence[Used], kernels: Kernels) -> Iterator[str]:
    """How to name a kernel for each phase; nothing where a phase has none, or where there is only one."""
    best = {}
    for op, phase in dict.fromkeys((op, phase) for op, phase, _ in covered):
        able = kernels.usable([used for used in covered if used[1] == phase])
        if not able:
            return
        best[f"kernels.{op}.{phase}"] = able[0].name
    if len(best) > 1:
        yield f"name one for each phase: {listing(f'{key}: {name}' for key, name in best.items())}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """An op without a kernel."""

    op: str
    refusal: Refusal
    because: str = ""
    """What keeps the nearest kernel away."""


def refuse_none(used: Used, kernels: Kernels) -> Missing:
    """The refusal of an op that no kernel can run: it blames what keeps the nearest one away."""
    op, phase, format_name = used
    launch = kernels.launch
    # Kernels of another device, phase or owner are no way out, whatever the profile says.
    near = [
        (list(faults(card, phase, format_name, launch)), card)
        for card in kernels.cards
        if launch.kind in card.devices and not card.not_called and phase in card.phases
    ]
    fitting = [(found, card) for found, card in near if format_name in card.formats]
    if not fitting:
        formats = dict.fromkeys(name for _, card in near for name in card.formats)
        here = f"take {listing(formats)}" if formats else "are none"
        return _missing(
            op,
            f"kernels.{op}",
            f"no kernel for `{op}` takes {format_name} on {launch.kind}: those there {here}",
            "serve a checkpoint of another format, or on another device",
        )
    unfit = [(found, card) for found, card in fitting if found]
    tried = "; ".join(f"`{card.name}`: {found[0].words}" for found, card in unfit)
    spared = [card.name for found, card in fitting if not found]
    if spared:
        left = f" ({tried})" if tried else ""
        return _missing(
            op,
            f"kernels.{op}",
            f"no kernel for `{op}` with {format_name} is left: the profile avoids {listing(spared)}{left}",
            f"allow `{spared[0]}`",
        )
    found, _ = min(unfit, key=_distance)
    fault = found[0]
    if fault.cause == "page":
        return _refuse_page(op, format_name, kernels)
    refusal = Refusal(
        field=fault.field,
        message=f"no kernel for `{op}` with {format_name} ({tried})",
        hint=fault.remedy or "take another card",
        code="hazard" if fault.cause == "hazard" else "no_kernel",
    )
    return Missing(op=op, refusal=refusal, because=fault.words)


def _distance(candidate: tuple[list[Unfit], KernelCard]) -> tuple[bool, int, tuple[int, int], int]:
    """How much has to change for a card's kernel, least first."""
    found, card = candidate
    return not found[0].remedy, len(found), card.min_capability, card.rank


def _missing(op: str, field: str, message: str, hint: str) -> Missing:
    refusal = Refusal(field=field, message=message, hint=hint, code="no_kernel")
    return Missing(op=op, refusal=refusal)


def _refuse_page(op: str, format_name: str, kernels: Kernels) -> Missing:
    # Decode and prefill have one cache: a size that only one of them takes is no way out.
    launch = kernels.launch
    by_phase = [
        {
            size
            for card in kernels.cards
            for size in card.page_sizes
            if not unfitness(card, phase, format_name, replace(launch, page_size=size))
        }
        for phase in ("decode", "prefill")
    ]
    sizes = sorted(by_phase[0] & by_phase[1])
    return _missing(
        op,
        "cache.page_size",
        f"no kernel for `{op}` with {format_name} takes pages of `{launch.page_size}` tokens",
        "use " + " or ".join(f"`{size}`" for size in sizes),
    )


def merged(missing: Iterable[Missing]) -> tuple[Refusal, ...]:
    """One refusal for each cause: ops that the same change would mend are told together."""
    causes: dict[tuple[str, str], dict[str, Missing]] = {}
    for one in missing:
        cause = (one.refusal.field, one.refusal.hint)
        causes.setdefault(cause, {}).setdefault(one.op, one)
    return tuple(_together(tuple(ops.values())) for ops in causes.values())


def _together(ops: Sequence[Missing]) -> Refusal:
    first = ops[0]
    if len(ops) == 1:
        return first.refusal
    named = listing(one.op for one in ops[:MOST_OPS])
    others = f" and {len(ops) - MOST_OPS} more" if len(ops) > MOST_OPS else ""
    return replace(first.refusal, message=f"no kernel for the ops {named}{others}: {first.because}")
