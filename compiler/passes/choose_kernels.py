"""`choose_kernels`: which kernel runs which op, from cards, hazards and the profile's own words (D13)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice, RejectedKernel
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import CacheChoice, ModelFacts
from firmtoken.compiler.hazard_effects import plan_refusals
from firmtoken.compiler.kernel_constants import kernel_constants
from firmtoken.compiler.kernel_fitness import Launch, describe_launch, unfitness
from firmtoken.compiler.kernel_wishes import KernelWishes, read_wishes
from firmtoken.schema.profile import Profile

Used = tuple[str, str, str]
"""Op, phase, format of the operand that decides."""


def choose_kernels(
    profile: Profile,
    facts: ModelFacts,
    cache: CacheChoice,
    used: Sequence[Used],
    cards: Sequence[KernelCard],
) -> tuple[KernelChoice, ...]:
    """One choice per op, phase, format and size range; raises `PlanError` with every op that has none."""
    wishes = read_wishes(profile, used, cards)
    launch = describe_launch(profile, cache)
    choices: list[KernelChoice] = []
    refusals = list(plan_refusals(launch.situation))
    for op, phase, format_name in dict.fromkeys(used):
        own = [card for card in cards if card.op == op]
        constants = kernel_constants(op, profile.model.geometry, facts, cache)
        found = _choose((op, phase, format_name), own, wishes, launch)
        if isinstance(found, Refusal):
            refusals.append(found)
            continue
        choices += [
            _choice((op, phase, format_name), pick, constants, rejected, because)
            for pick, rejected, because in found
        ]
    if refusals:
        raise PlanError(tuple(dict.fromkeys(refusals)))
    return tuple(choices)


Range = tuple[KernelCard, int, int]
Found = tuple[Range, tuple[RejectedKernel, ...], str]


def _choose(
    used: Used, own: Sequence[KernelCard], wishes: KernelWishes, launch: Launch
) -> Refusal | list[Found]:
    op, phase, format_name = used
    key, named = wishes.named(op, phase)
    avoided = wishes.avoided(op, phase)
    faults = {card.name: unfitness(card, phase, format_name, launch) for card in own}
    usable = sorted(
        (card for card in own if not faults[card.name] and card.name not in avoided),
        key=lambda card: (card.rank, card.name),
    )
    wanted = next((card for card in own if card.name == named), None)
    # A name without a format can only mean the formats that the card takes.
    if wanted is not None and format_name in wanted.formats:
        if faults[wanted.name]:
            return _refuse_named(key, wanted, faults[wanted.name], usable)
        because = f"`kernels.{key}` names it"
        ranges: list[Range] = [(wanted, 1, wanted.max_rows)]
    elif not usable:
        other_pages = _page_sizes(used, own, avoided, launch)
        if other_pages:
            return _refuse_page(used, launch.page_size, other_pages)
        return _refuse_all(used, own, faults, avoided)
    else:
        ranges = _ranges(usable)
        because = _ranking(ranges[0][0], len(usable))
    chosen = {card.name for card, _, _ in ranges}
    rejected = tuple(
        RejectedKernel(
            kernel=card.name, because=_rejection(card, faults, avoided, ranges[0][0], key)
        )
        for card in own
        if card.name not in chosen
    )
    return [(part, rejected, because) for part in ranges]


def _ranges(usable: Sequence[KernelCard]) -> list[Range]:
    # In order of rank; a card that stops at some size hands over to the next one that goes further.
    ranges: list[Range] = []
    covered = 0
    for card in usable:
        if covered < card.max_rows:
            ranges.append((card, covered + 1, card.max_rows))
            covered = card.max_rows
    return ranges


def _ranking(best: KernelCard, count: int) -> str:
    if count == 1:
        return f"the only usable kernel: {best.because}"
    return f"ranks first of {count} usable kernels: {best.because}"


def _rejection(
    card: KernelCard,
    faults: dict[str, str],
    avoided: Iterable[str],
    best: KernelCard,
    key: str,
) -> str:
    if faults[card.name]:
        return faults[card.name]
    if card.name in avoided:
        return "the profile avoids it"
    if key:
        return f"`kernels.{key}` names `{best.name}`"
    return f"usable; `{best.name}` ranks before it: {best.because}"


def _choice(
    used: Used,
    part: Range,
    constants: dict[str, int | float | str],
    rejected: tuple[RejectedKernel, ...],
    because: str,
) -> KernelChoice:
    op, phase, format_name = used
    card, low, high = part
    return KernelChoice(
        op=op,
        phase=phase,
        format=format_name,
        sizes=(low, high),
        kernel=card.name,
        entry=card.entry,
        constants=dict(constants),
        because=because,
        evidence=card.evidence,
        status=card.status,
        ignores_stream=card.ignores_stream,
        respects_holds=card.respects_holds,
        in_place=card.in_place,
        workspace_bytes=card.workspace_bytes,
        rejected=rejected,
    )


def _refuse_named(
    key: str, wanted: KernelCard, fault: str, usable: Sequence[KernelCard]
) -> Refusal:
    others = " or ".join(f"`{card.name}`" for card in usable if card.name != wanted.name)
    return Refusal(
        field=f"kernels.{key}",
        message=f"`{wanted.name}` cannot be used for `{wanted.op}`: {fault}",
        hint=f"use {others}" if others else "remove this line",
        code="hazard" if fault.startswith(wanted.hazards) else "no_kernel",
    )


def _page_sizes(
    used: Used, own: Sequence[KernelCard], avoided: Iterable[str], launch: Launch
) -> tuple[int, ...]:
    """Sizes of a page with which a kernel could be used."""
    _, phase, format_name = used
    sizes = {
        size
        for card in own
        if card.name not in avoided
        for size in card.page_sizes
        if not unfitness(card, phase, format_name, replace(launch, page_size=size))
    }
    return tuple(sorted(sizes))


def _refuse_page(used: Used, page_size: int, others: Sequence[int]) -> Refusal:
    # The phase is left out: decode and prefill have one cache, so this is one fault.
    op, _, format_name = used
    return Refusal(
        field="cache.page_size",
        message=f"no kernel for `{op}` with {format_name} takes pages of `{page_size}` tokens",
        hint="use " + " or ".join(f"`{size}`" for size in others),
        code="no_kernel",
    )


def _refuse_all(
    used: Used, own: Sequence[KernelCard], faults: dict[str, str], avoided: Iterable[str]
) -> Refusal:
    op, phase, format_name = used
    reasons = [
        f"`{card.name}`: {faults[card.name] or 'the profile avoids it'}"
        for card in own
        if not card.not_called and (format_name in card.formats or len(own) == 1)
    ]
    spared = [card.name for card in own if card.name in avoided and not faults[card.name]]
    listed = "; ".join(reasons) if reasons else f"no card takes `{format_name}`"
    return Refusal(
        field=f"kernels.{op}",
        message=f"no kernel for `{op}` in {phase} with {format_name} ({listed})",
        hint=f"allow `{spared[0]}`" if spared else "another number format or device has one",
        code="no_kernel",
    )
