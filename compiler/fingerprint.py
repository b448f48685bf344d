"""The fingerprint: equal for equal inputs, whatever the path, the Python version or the hash seed (D12)."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.plan import SCHEMA
from firmtoken.schema.canonical import canonical
from firmtoken.schema.profile import Profile

HAZARDS = Path(__file__).parent / "hazards.yaml"


def profile_fingerprint(profile: Profile) -> str:
    """sha256 over what the profile asks for, without name, description, server and source location."""
    return _digest(canonical(profile))


def cards_fingerprint(cards: Sequence[KernelCard]) -> str:
    """sha256 over all cards, in whatever order they come."""
    return _digest(msgspec.to_builtins(_ordered(cards)))


def hazards_fingerprint() -> str:
    """sha256 over the file of all hazards."""
    return hashlib.sha256(HAZARDS.read_bytes()).hexdigest()


def fingerprint(profile: Profile, cards: Sequence[KernelCard]) -> str:
    """sha256 over the profile, all cards, all hazards and the plan schema; versions are part of the profile."""
    parts = [SCHEMA, canonical(profile), msgspec.to_builtins(_ordered(cards))]
    return _digest([*parts, hazards_fingerprint()])


def _ordered(cards: Sequence[KernelCard]) -> list[KernelCard]:
    return sorted(cards, key=lambda card: (card.op, card.name))


def _digest(value: object) -> str:
    encoded = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()
