"""Whether a card's kernel can run a launch, and if not, every reason and what would mend it."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from operator import attrgetter

from firmtoken.compiler.cards import KernelCard, SizeLimit
from firmtoken.compiler.facts import CacheChoice
from firmtoken.compiler.hazard_effects import said
from firmtoken.compiler.hazards import blamed_field, find_hazard, holds
from firmtoken.compiler.machine import describe_machine, uses_graphs
from firmtoken.compiler.situation import Situation, describe_situation, installed
from firmtoken.schema.hardware import Hardware
from firmtoken.schema.model import Geometry
from firmtoken.schema.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all launches of a plan have in common."""

    hardware: Hardware
    situation: Situation
    kind: str
    capability: tuple[int, int]
    geometry: Geometry
    page_size: int
    captured: bool
    """Whether decode steps are CUDA graphs."""
    side_streams: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """One reason why a kernel cannot run a launch."""

    cause: str
    """`hazard`, `device`, `foreign`, `phase`, `format`, or what of the launch it cannot do."""
    words: str
    field: str = ""
    """The profile's field that is in its way; empty where it is the kernel itself."""
    remedy: str = ""
    """What would mend it; empty where nothing is known to."""


def describe_launch(profile: Profile, cache: CacheChoice) -> Launch:
    """The launches that this profile asks for."""
    machine = describe_machine(profile.hardware)
    return Launch(
        hardware=profile.hardware,
        situation=describe_situation(profile, cache),
        kind=machine.kind,
        capability=machine.capability,
        geometry=profile.model.geometry,
        page_size=cache.page_size,
        captured=uses_graphs(profile),
        side_streams=profile.streams.layout == "auto",
    )


def unfitness(card: KernelCard, phase: str, format_name: str, launch: Launch) -> str:
    """The first reason why the kernel cannot run this launch; empty if it can."""
    return next((fault.words for fault in faults(card, phase, format_name, launch)), "")


def faults(card: KernelCard, phase: str, format_name: str, launch: Launch) -> Iterator[Unfit]:
    """Every reason why the kernel cannot run this launch, the gravest first."""
    # Hazards first: whoever names such a kernel should read what would happen, not which format it lacks.
    yield from _hazards(card, launch)
    if launch.kind not in card.devices:
        yield Unfit(cause="device", words=f"runs on {_either(card.devices)}, not on {launch.kind}")
    yield from _capability(card, launch)
    if card.not_called:
        words = "; ".join((f"not called: {card.not_called}", *_warnings(card, launch)))
        yield Unfit(cause="foreign", words=words)
    if phase not in card.phases:
        yield Unfit(cause="phase", words=f"for {_either(card.phases)} only")
    if format_name not in card.formats:
        yield Unfit(cause="format", words=f"takes {_either(card.formats)}, not {format_name}")
    yield from _shapes(card, launch)
    yield from _limits(card, launch)
    yield from _packages(card, launch)
    yield from _streams(card, phase, launch)


def _hazards(card: KernelCard, launch: Launch) -> Iterator[Unfit]:
    for hazard_id in card.hazards:
        hazard = find_hazard(hazard_id)
        if hazard.act == "forbid" and holds(hazard, launch.situation):
            yield Unfit(
                cause="hazard",
                words=f"{said(hazard, launch.situation)}; safe: {hazard.alternative}",
                field=blamed_field(hazard, launch.situation),
                remedy=hazard.alternative,
            )


def _warnings(card: KernelCard, launch: Launch) -> Iterator[str]:
    for hazard_id in card.hazards:
        hazard = find_hazard(hazard_id)
        if hazard.act == "warn" and holds(hazard, launch.situation):
            yield said(hazard, launch.situation)


def _capability(card: KernelCard, launch: Launch) -> Iterator[Unfit]:
    if launch.kind != "cuda" or "cuda" not in card.devices:
        return
    field = "hardware.gpu.compute_capability"
    for excluded in card.excluded:
        if excluded.first <= launch.capability <= excluded.last:
            yield Unfit(cause="capability", words=excluded.because, field=field)
    if launch.capability < card.min_capability:
        least = _dotted(card.min_capability)
        yield Unfit(
            cause="capability",
            words=f"needs compute capability {least}, this is {_dotted(launch.capability)}",
            field=field,
            remedy=f"take a card of compute capability {least} or later",
        )
    if launch.capability > card.max_capability:
        most = _dotted(card.max_capability)
        yield Unfit(
            cause="capability",
            words=f"ends at compute capability {most}, this is {_dotted(launch.capability)}",
            field=field,
            remedy=f"take a card of compute capability {most} at most",
        )


def _shapes(card: KernelCard, launch: Launch) -> Iterator[Unfit]:
    head_dim = launch.geometry.head_dim
    if card.head_dims and head_dim not in card.head_dims:
        sizes = _either(card.head_dims)
        yield Unfit(
            cause="heads",
            words=f"takes heads of {sizes}, not {head_dim}",
            field="model.geometry.head_dim",
            remedy=f"serve a model with heads of {sizes}",
        )
    if card.page_sizes and launch.page_size not in card.page_sizes:
        yield Unfit(
            cause="page",
            words=f"takes pages of {_either(card.page_sizes)}, not {launch.page_size}",
            field="cache.page_size",
            remedy="use " + " or ".join(f"`{size}`" for size in card.page_sizes),
        )


def _limits(card: KernelCard, launch: Launch) -> Iterator[Unfit]:
    for limit in card.limits:
        found = size_of(limit, launch.geometry)
        if found is None or (
            found % limit.multiple_of == 0 and (not limit.one_of or found in limit.one_of)
        ):
            continue
        name = " times ".join(f"`{size}`" for size in limit.sizes)
        taken = _either(limit.one_of) if limit.one_of else f"a multiple of {limit.multiple_of}"
        yield Unfit(
            cause="size",
            words=f"takes {name} of {taken}, not {found}",
            field=f"model.geometry.{limit.sizes[0]}",
            remedy=f"serve a model whose {name} is {taken}",
        )


def size_of(limit: SizeLimit, geometry: Geometry) -> int | None:
    """What the limit is about; None where the model has no such thing."""
    if geometry.linear is None and any(size.startswith("linear.") for size in limit.sizes):
        return None
    found: list[int] = [attrgetter(size)(geometry) for size in limit.sizes]
    return prod(found)


def _packages(card: KernelCard, launch: Launch) -> Iterator[Unfit]:
    listed = installed(launch.hardware.software)
    for package in card.requires:
        if listed.get(package) is None:
            yield Unfit(
                cause="package",
                words=f"needs {package}, which `hardware.software` does not list",
                field=f"hardware.software.{package}",
                remedy=f"give the version of {package} that the machine has",
            )


def _streams(card: KernelCard, phase: str, launch: Launch) -> Iterator[Unfit]:
    captured = launch.captured and phase == "decode"
    if captured and not card.capturable:
        yield Unfit(
            cause="graph",
            words="cannot be captured in a CUDA graph",
            field="graphs",
            remedy="set `graphs` to `off`",
        )
    if card.ignores_stream and (captured or launch.side_streams):
        yield Unfit(
            cause="stream",
            words="ignores its stream, so it is refused in a graph and beside a side stream",
            field="streams.layout",
            remedy="set `graphs` to `off` and `streams.layout` to `single`",
        )


def _either(words: tuple[object, ...]) -> str:
    return " or ".join(str(word) for word in words)


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
