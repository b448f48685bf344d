"""Whether a card's kernel can run a launch, and if not, the first reason."""

from collections.abc import Iterator
from dataclasses import dataclass

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.facts import CacheChoice
from firmtoken.compiler.hazard_effects import said
from firmtoken.compiler.hazards import find_hazard, holds
from firmtoken.compiler.machine import captures, describe_machine
from firmtoken.compiler.situation import Situation, describe_situation, installed
from firmtoken.schema.hardware import Hardware
from firmtoken.schema.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all launches of a plan have in common."""

    hardware: Hardware
    situation: Situation
    kind: str
    capability: tuple[int, int]
    head_dim: int
    page_size: int
    captured: bool
    """Whether decode steps are CUDA graphs."""
    side_streams: bool


def describe_launch(profile: Profile, cache: CacheChoice) -> Launch:
    """The launches that this profile asks for."""
    machine = describe_machine(profile.hardware)
    return Launch(
        hardware=profile.hardware,
        situation=describe_situation(profile, cache),
        kind=machine.kind,
        capability=machine.capability,
        head_dim=profile.model.geometry.head_dim,
        page_size=cache.page_size,
        captured=captures(profile),
        side_streams=profile.streams.layout == "auto",
    )


def unfitness(card: KernelCard, phase: str, format_name: str, launch: Launch) -> str:
    """Why the kernel cannot run this launch; empty if it can."""
    return next(_faults(card, phase, format_name, launch), "")


def _faults(card: KernelCard, phase: str, format_name: str, launch: Launch) -> Iterator[str]:
    # Hazards first: whoever names such a kernel should read what would happen, not which format it lacks.
    yield from _hazards(card, launch)
    if launch.kind not in card.devices:
        yield f"runs on {_either(card.devices)}, not on {launch.kind}"
    yield from _capability(card, launch)
    if card.not_called:
        yield "; ".join((f"not called: {card.not_called}", *_warnings(card, launch)))
    if phase not in card.phases:
        yield f"for {_either(card.phases)} only"
    if format_name not in card.formats:
        yield f"takes {_either(card.formats)}, not {format_name}"
    yield from _shapes(card, launch)
    yield from _packages(card, launch)
    yield from _streams(card, phase, launch)


def _hazards(card: KernelCard, launch: Launch) -> Iterator[str]:
    for hazard_id in card.hazards:
        hazard = find_hazard(hazard_id)
        if hazard.act == "forbid" and holds(hazard, launch.situation):
            yield f"{said(hazard, launch.situation)}; safe: {hazard.alternative}"


def _warnings(card: KernelCard, launch: Launch) -> Iterator[str]:
    for hazard_id in card.hazards:
        hazard = find_hazard(hazard_id)
        if hazard.act == "warn" and holds(hazard, launch.situation):
            yield said(hazard, launch.situation)


def _capability(card: KernelCard, launch: Launch) -> Iterator[str]:
    if launch.kind != "cuda" or "cuda" not in card.devices:
        return
    for excluded in card.excluded:
        if excluded.first <= launch.capability <= excluded.last:
            yield excluded.because
    if launch.capability < card.min_capability:
        yield f"needs compute capability {_dotted(card.min_capability)}, this is {_dotted(launch.capability)}"
    if launch.capability > card.max_capability:
        yield f"ends at compute capability {_dotted(card.max_capability)}, this is {_dotted(launch.capability)}"


def _shapes(card: KernelCard, launch: Launch) -> Iterator[str]:
    if card.head_dims and launch.head_dim not in card.head_dims:
        yield f"takes heads of {_either(card.head_dims)}, not {launch.head_dim}"
    if card.page_sizes and launch.page_size not in card.page_sizes:
        yield f"takes pages of {_either(card.page_sizes)}, not {launch.page_size}"


def _packages(card: KernelCard, launch: Launch) -> Iterator[str]:
    listed = installed(launch.hardware.software)
    for package in card.requires:
        if listed.get(package) is None:
            yield f"needs {package}, which `hardware.software` does not list"


def _streams(card: KernelCard, phase: str, launch: Launch) -> Iterator[str]:
    captured = launch.captured and phase == "decode"
    if captured and not card.capturable:
        yield "cannot be captured in a CUDA graph"
    if card.ignores_stream and (captured or launch.side_streams):
        yield "ignores its stream, so it is refused in a graph and beside a side stream"


def _either(words: tuple[object, ...]) -> str:
    return " or ".join(str(word) for word in words)


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
