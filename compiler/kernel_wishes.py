"""What a profile says about kernels by name: those to use and those to avoid, checked against ops and cards."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.ops import OP_NAMES
from firmtoken.schema.diagnostic import did_you_mean, listing
from firmtoken.schema.profile import Avoid, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWishes:
    """`kernels:` of a profile, every name known."""

    names: Mapping[str, str]
    """Key (`op` or `op.phase`) -> kernel."""
    avoids: Mapping[str, tuple[str, ...]]

    def named(self, op: str, phase: str) -> tuple[str, str]:
        """The key and the kernel it names; two empty strings if the profile names none. `op.phase` goes before `op`."""
        for key in (f"{op}.{phase}", op):
            if key in self.names:
                return key, self.names[key]
        return "", ""

    def avoided(self, op: str, phase: str) -> tuple[str, ...]:
        """Kernels that must not be chosen."""
        return (*self.avoids.get(op, ()), *self.avoids.get(f"{op}.{phase}", ()))


def read_wishes(
    profile: Profile, used: Sequence[tuple[str, str, str]], cards: Sequence[KernelCard]
) -> KernelWishes:
    """The wishes; raises `PlanError` with every name that does not exist or cannot be meant."""
    refusals = tuple(
        refusal
        for key, choice in profile.kernels.items()
        for refusal in _faults(key, choice, used, cards)
    )
    if refusals:
        raise PlanError(refusals)
    return KernelWishes(
        names={key: name for key, name in profile.kernels.items() if isinstance(name, str)},
        avoids={
            key: choice.avoid
            for key, choice in profile.kernels.items()
            if isinstance(choice, Avoid)
        },
    )


def _faults(
    key: str,
    choice: str | Avoid,
    used: Sequence[tuple[str, str, str]],
    cards: Sequence[KernelCard],
) -> Iterator[Refusal]:
    op = key.partition(".")[0]
    if op not in OP_NAMES:
        yield Refusal(
            field=f"kernels.{key}",
            message=f"there is no op `{op}`",
            hint=did_you_mean(op, OP_NAMES) or f"ops are {listing(OP_NAMES)}",
            code="unknown_op",
        )
        return
    own = {card.name: card for card in cards if card.op == op}
    names = choice.avoid if isinstance(choice, Avoid) else (choice,)
    for name in names:
        if name not in own:
            yield Refusal(
                field=f"kernels.{key}",
                message=f"`{op}` has no kernel `{name}`",
                hint=did_you_mean(name, tuple(own)) or f"it has {listing(_callable(own))}",
                code="unknown_kernel",
            )
    if isinstance(choice, Avoid):
        return
    if not any(key in (name, f"{name}.{phase}") for name, phase, _ in used):
        yield Refusal(
            field=f"kernels.{key}",
            message=f"this plan never launches `{key}`",
            hint="remove this line",
            code="contradiction",
        )
    elif choice in own:
        yield from _unusable(key, op, own[choice], used)


def _callable(own: Mapping[str, KernelCard]) -> tuple[str, ...]:
    return tuple(name for name, card in own.items() if not card.not_called)


def _unusable(
    key: str, op: str, card: KernelCard, used: Sequence[tuple[str, str, str]]
) -> Iterator[Refusal]:
    formats = {format_name for name, _, format_name in used if name == op}
    if formats and not formats & set(card.formats):
        yield Refusal(
            field=f"kernels.{key}",
            message=f"`{card.name}` takes {listing(card.formats)}, this plan has {listing(sorted(formats))}",
            hint="remove this line, or change the format",
            code="no_kernel",
        )
