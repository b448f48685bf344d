"""What was measured: one row a question, medians of several runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """When the tokens of one request arrived, in seconds since it was sent."""

    arrivals: tuple[float, ...]
    tokens: int
    """Tokens produced; a chunk of text may carry more than one."""
    cached: int
    """Of the prompt's tokens, those that were found in the prefix cache."""

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number with its unit, and what the plan had estimated (0 = no estimate)."""

    name: str
    value: float
    unit: str
    runs: tuple[float, ...]
    estimate: float
    note: str
    """What else was seen; for people."""


def row(
    name: str, unit: str, runs: Sequence[float], *, estimate: float = 0.0, note: str = ""
) -> Row:
    """A row from its runs."""
    return Row(
        name=name, value=median(runs), unit=unit, runs=tuple(runs), estimate=estimate, note=note
    )


def decode_rate(streams: Sequence[Stream]) -> float:
    """Tokens per second of all streams together while every one of them was running.

    (n - 1) / (t_last - t_first) for one stream; for several, the tokens between the last first token and the first
    last token.
    """
    start = max(stream.arrivals[0] for stream in streams)
    end = min(stream.arrivals[-1] for stream in streams)
    if end <= start:
        return 0.0
    tokens = sum(
        sum(start < at <= end for at in stream.arrivals) * (stream.tokens / len(stream.arrivals))
        for stream in streams
    )
    return tokens / (end - start)
