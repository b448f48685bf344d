"""What is asked of each kind of device: the lengths behind the rows of `ft bench`, in tokens."""

from collections.abc import Mapping
from dataclasses import dataclass

STREAMS = 4
FREE_TOKENS = 64
"""Left of the context behind the longest request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Requests that a device answers in seconds, and that say something about it."""

    prompt: int
    """Before the tokens that decode rows write."""
    output: int
    """Written by each stream of a decode row."""
    first_tokens: tuple[int, ...]
    """New prompts; the shortest is also the first request that a server gets."""
    known: tuple[int, ...]
    """First turns, of which the longest that fits is asked."""
    turn: int
    """New tokens of the second turn."""
    deep: int | None
    """A long prompt before the tokens of a decode row; None: it would take minutes."""
    timed: bool
    """Whether the device measures its decode steps itself."""

    @property
    def least_context(self) -> int:
        """What the first row takes."""
        return self.prompt + self.output + FREE_TOKENS


QUESTIONS: Mapping[str, Questions] = {
    "cpu": Questions(
        prompt=64,
        output=192,
        first_tokens=(64, 512, 2048),
        known=(64, 512, 2048),
        turn=50,
        deep=None,
        timed=False,
    ),
    "cuda": Questions(
        prompt=108,
        output=256,
        first_tokens=(108, 1508, 6008),
        known=(107, 3007),
        turn=61,
        deep=32_000,
        timed=True,
    ),
}
"""By the kind of the plan's device; a GPU's are the lengths that a peer was measured at (facts/performance.md, top)."""
