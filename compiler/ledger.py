"""Ledger lines: what every byte of one side is for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a ledger: `bytes = align_up(unit_bytes * count)`. No line is a remainder."""

    name: str
    bytes: int
    unit_bytes: int
    count: int
    unit: str
    """`page`, `slot`, `sequence`, `layer`, `graph` or `1`."""
    align: int
    kind: str
    """`fixed`, `per_token`, `per_sequence`, `per_slot` or `reserve`."""
    source: str
    """`computed`, `measured` or `documented`."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """One side's memory: `budget = capacity - reserve`, `total = sum(lines)`, `free = budget - total`."""

    capacity: int
    budget: int
    total: int
    free: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Both sides, transients included."""

    device: Ledger
    host: Ledger
