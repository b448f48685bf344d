"""The seam between decoded text and what a client receives: text in, deltas out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Text of the answer."""

    text: str


Delta = Content
"""What a dialect tells apart; thoughts and tool calls join with their own types."""


class Dialect(Protocol):
    """One family's spelling, reading one answer; any split of a text gives the same deltas, joined."""

    name: str

    def feed(self, text: str) -> Iterator[Delta]:
        """Deltas that `text` completes."""
        ...

    def finish(self) -> Iterator[Delta]:
        """What was held back."""
        ...
