"""What a profile says about kernels by name: those to use and those to avoid, checked against ops and cards."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.kernel_fitness import Launch
from firmtoken.compiler.kernel_refusals import Kernels, Used, name_by_phase
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


def covered_by(key: str, used: Sequence[Used], keys: Collection[str]) -> list[Used]:
    """The launches that `key` speaks for: `op.phase` goes before `op`."""
    return [
        (op, phase, format_name)
        for op, phase, format_name in used
        if key == f"{op}.{phase}" or (key == op and f"{op}.{phase}" not in keys)
    ]


def read_wishes(
    profile: Profile, used: Sequence[Used], cards: Sequence[KernelCard], launch: Launch
) -> KernelWishes:
    """The wishes; raises `PlanError` with every name that does not exist or is for launches that there are not."""
    refusals = tuple(
        refusal
        for key, choice in profile.kernels.items()
        for refusal in _faults(key, choice, used, cards, launch)
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
    used: Sequence[Used],
    cards: Sequence[KernelCard],
    launch: Launch,
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
    covered = covered_by(key, used, ())
    names = choice.avoid if isinstance(choice, Avoid) else (choice,)
    for name in names:
        if name not in own:
            kernels = Kernels(cards=tuple(own.values()), avoided=(), launch=launch)
            near = did_you_mean(name, tuple(own))
            yield Refusal(
                field=f"kernels.{key}",
                message=f"`{op}` has no kernel `{name}`",
                hint=near or _to_name(covered, kernels),
                code="unknown_kernel",
            )
    if not isinstance(choice, Avoid) and not covered:
        yield Refusal(
            field=f"kernels.{key}",
            message=f"this plan never launches `{key}`",
            hint="remove this line",
            code="contradiction",
        )


def _to_name(covered: Sequence[Used], kernels: Kernels) -> str:
    """What may be named there instead."""
    able = kernels.to_propose(covered)
    if covered and able:
        return f"use {' or '.join(f'`{name}`' for name in able)}"
    return next(name_by_phase(covered, kernels), "remove this line")
