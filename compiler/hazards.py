"""Known hazards: under which versions and capabilities a kernel must not be used, or a size not exceeded.

`hazards.yaml` is written in the part of YAML that is JSON too, so reading it costs microseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import msgspec

from firmtoken.compiler.machine import describe_machine
from firmtoken.schema.hardware import Hardware, Software

HAZARDS = Path(__file__).parent / "hazards.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """One hazard. All of its conditions must hold; an unknown version may always be the bad one."""

    id: str
    effect: str
    """What happens, without the condition."""
    remedy: str
    source: str
    min_capability: tuple[int, int] = (0, 0)
    max_capability: tuple[int, int] = (99, 9)
    since: Mapping[str, str] = field(default_factory=dict)
    """Package -> first version that has it."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Package -> first version without it."""
    os: tuple[str, ...] = ()
    """Operating systems that have it; empty = any."""
    caps: Mapping[str, int] = field(default_factory=dict)
    """Sizes it limits instead of forbidding a kernel."""


@lru_cache(maxsize=1)
def load_hazards() -> tuple[Hazard, ...]:
    """All hazards, in the file's order."""
    return msgspec.json.decode(HAZARDS.read_bytes(), type=tuple[Hazard, ...])


def find_hazard(hazard_id: str) -> Hazard:
    """The hazard of this id; raises `KeyError` for one that a card invents."""
    for hazard in load_hazards():
        if hazard.id == hazard_id:
            return hazard
    raise KeyError(hazard_id)


def holds(hazard: Hazard, hardware: Hardware) -> bool:
    """Whether the hazard exists on this machine."""
    machine = describe_machine(hardware)
    if machine.kind != "cuda":
        return False
    if not hazard.min_capability <= machine.capability <= hazard.max_capability:
        return False
    software = hardware.software
    if hazard.os and software.os is not None and software.os not in hazard.os:
        return False
    return all(_reached(software, *limit) for limit in hazard.since.items()) and not any(
        _known_from(software, *limit) for limit in hazard.before.items()
    )


def condition(hazard: Hazard) -> str:
    """The condition in words: `compute capability 8.9, torch before 2.12`."""
    low, high = hazard.min_capability, hazard.max_capability
    parts = []
    if low == high:
        parts.append(f"compute capability {low[0]}.{low[1]}")
    elif low > (0, 0):
        parts.append(f"compute capability from {low[0]}.{low[1]}")
    elif high < (99, 9):
        parts.append(f"compute capability to {high[0]}.{high[1]}")
    parts += [f"{package} from {version}" for package, version in hazard.since.items()]
    parts += [f"{package} before {version}" for package, version in hazard.before.items()]
    parts += [" or ".join(hazard.os)] if hazard.os else []
    return ", ".join(parts) or "always"


def hazards_with_cap(quantity: str, hardware: Hardware) -> tuple[tuple[Hazard, int], ...]:
    """Hazards of this machine that limit a size, with the limit."""
    return tuple(
        (hazard, hazard.caps[quantity])
        for hazard in load_hazards()
        if quantity in hazard.caps and holds(hazard, hardware)
    )


def version(text: str) -> tuple[int, ...]:
    """`2.12.1+cu130` -> (2, 12, 1); what is not a number ends it."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def installed(software: Software, package: str) -> str | None:
    """The version a hardware profile lists for a package, if any."""
    listed: Mapping[str, str | None] = {
        "torch": software.torch,
        "triton": software.triton,
        "flashinfer": software.flashinfer,
        "cuda": software.cuda,
        "nvcc": software.nvcc,
        "driver": software.driver,
    }
    return listed.get(package)


def _reached(software: Software, package: str, first: str) -> bool:
    found = installed(software, package)
    return found is None or version(found) >= version(first)


def _known_from(software: Software, package: str, first: str) -> bool:
    found = installed(software, package)
    return found is not None and version(found) >= version(first)
