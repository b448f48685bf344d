"""`choose_kernels`: which kernel runs which op, from cards, hazards and the profile's own words (D13)."""

from collections.abc import Iterable, Iterator, Sequence

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice, RejectedKernel
from firmtoken.compiler.computed_constants import computed_constants
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import Batches, CacheChoice, ModelFacts
from firmtoken.compiler.hazard_effects import plan_refusals
from firmtoken.compiler.kernel_constants import kernel_constants
from firmtoken.compiler.kernel_fitness import Launch, describe_launch, unfitness
from firmtoken.compiler.kernel_refusals import (
    Kernels,
    Missing,
    Used,
    merged,
    refuse_named,
    refuse_none,
)
from firmtoken.compiler.kernel_wishes import KernelWishes, covered_by, read_wishes
from firmtoken.compiler.workspaces import sizes_of, workspace_bytes
from firmtoken.schema.profile import Profile


def choose_kernels(
    profile: Profile,
    facts: ModelFacts,
    batches: Batches,
    cache: CacheChoice,
    used: Sequence[Used],
    cards: Sequence[KernelCard],
) -> tuple[KernelChoice, ...]:
    """One choice per op, phase, format and size range; raises `PlanError` with every op that has none."""
    launch = describe_launch(profile, cache)
    wishes = read_wishes(profile, used, cards, launch)
    sizes = sizes_of(profile, facts, batches)
    choices: list[KernelChoice] = []
    missing: list[Missing] = []
    for op, phase, format_name in dict.fromkeys(used):
        own = [card for card in cards if card.op == op]
        constants = kernel_constants(op, profile.model.geometry, facts, cache)
        found = _choose((op, phase, format_name), own, wishes, launch)
        if isinstance(found, Missing):
            missing.append(found)
            continue
        choices += [
            _choice(
                (op, phase, format_name),
                pick,
                {**constants, **dict(pick[0].constants), **computed_constants(pick[0], sizes)},
                rejected,
                because,
                workspace_bytes(pick[0].workspace, sizes),
            )
            for pick, rejected, because in found
        ]
    refusals = (
        *plan_refusals(launch.situation),
        *_refused_names(wishes, used, cards, launch),
        *merged(missing),
    )
    if refusals:
        raise PlanError(tuple(dict.fromkeys(refusals)))
    return tuple(choices)


def _refused_names(
    wishes: KernelWishes, used: Sequence[Used], cards: Sequence[KernelCard], launch: Launch
) -> Iterator[Refusal]:
    for key, name in wishes.names.items():
        own = [card for card in cards if card.op == key.partition(".")[0]]
        wanted = next(card for card in own if card.name == name)
        covered = covered_by(key, used, wishes.names)
        # A name without a format can only mean the formats that the card takes.
        meant = [launched for launched in covered if launched[2] in wanted.formats] or covered
        avoided = {name for _, phase, _ in meant for name in wishes.avoided(wanted.op, phase)}
        refusal = refuse_named(
            key, wanted, meant, Kernels(cards=own, avoided=avoided, launch=launch)
        )
        if refusal is not None:
            yield refusal


Range = tuple[KernelCard, int, int]
Found = tuple[Range, tuple[RejectedKernel, ...], str]


def _choose(
    used: Used, own: Sequence[KernelCard], wishes: KernelWishes, launch: Launch
) -> Missing | list[Found]:
    op, phase, format_name = used
    key, named = wishes.named(op, phase)
    avoided = wishes.avoided(op, phase)
    kernels = Kernels(cards=own, avoided=avoided, launch=launch)
    faults = {card.name: unfitness(card, phase, format_name, launch) for card in own}
    usable = kernels.usable([used])
    wanted = next((card for card in own if card.name == named), None)
    if wanted is not None and format_name in wanted.formats:
        because = f"`kernels.{key}` names it"
        ranges: list[Range] = [(wanted, 1, wanted.max_rows)]
    elif not usable:
        return refuse_none(used, kernels)
    else:
        ranges = _ranges(usable)
        because = _ranking(ranges[0][0], len(usable))
    chosen = {card.name for card, _, _ in ranges}
    rejected = tuple(
        RejectedKernel(
            kernel=card.name,
            because=_rejection(card, faults, avoided, ranges[0][0], key),
            usable=card in usable,
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
    workspace: int,
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
        constants=constants,
        because=because,
        evidence=card.evidence,
        status=card.status,
        ignores_stream=card.ignores_stream,
        respects_holds=card.respects_holds,
        in_place=card.in_place,
        workspace=card.workspace,
        workspace_bytes=workspace,
        local_bytes=card.local_bytes,
        rejected=rejected,
    )
