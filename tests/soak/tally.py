"""What a soak has seen so far: counts, the worst waits, every fault."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any  # Any: JSON

from exchange import Answered, Ask, Heard
from verdict import faults

MOST_FAULTS = 50
SHOWN_CHARACTERS = 300
FLIGHT_S = 1.0
"""What a dying engine had already said may still arrive for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A probe that was answered otherwise than cold and alone."""

    ask: Ask
    wanted: str
    found: str


@dataclass(slots=True, kw_only=True)
class Tally:
    """Written by all clients of one event loop."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """By kind and outcome."""
    left_after: Counter[str] = field(default_factory=Counter)
    """What those who left had heard last."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    refused_429: int = 0
    unavailable_503: int = 0
    probes_right: int = 0
    differences: list[Difference] = field(default_factory=list)
    worst: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Seconds, and what it was."""
    faults: list[str] = field(default_factory=list)
    num_faults: int = 0

    def fault(self, sentence: str) -> None:
        """Something that must not be."""
        self.num_faults += 1
        print(sentence, file=sys.stderr, flush=True)
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(sentence)

    def at_worst(self, what: str, seconds: float, of: str) -> None:
        """Keep the longest."""
        if seconds > self.worst.get(what, (-1.0, ""))[0]:
            self.worst[what] = (round(seconds, 3), of)

    def take(self, ask: Ask, heard: Heard) -> None:
        """Judge one exchange."""
        self.refused_429 += heard.refused
        self.unavailable_503 += heard.unavailable
        if heard.killed_at is not None:
            self._take_killed(ask, heard)
            return
        found = faults(ask, heard)
        for fault in found:
            self.fault(f"{ask.kind}: {fault} | {shown(ask)}")
        self.outcomes[f"{ask.kind}: {outcome(heard, found)}"] += 1
        if heard.left:
            self.left_after[f"{ask.kind}: {heard.moment}"] += 1
        elif not found and heard.status == 200:
            self._count(ask, heard)

    def _take_killed(self, ask: Ask, heard: Heard) -> None:
        """The engine died under it: an error, or an end that was on its way already; never a clean end later."""
        assert heard.killed_at is not None
        told = heard.error is not None and str(heard.error.get("code", "")).startswith("engine_")
        late = heard.ended_at - heard.killed_at > FLIGHT_S + ask.pause_s
        if heard.left or told:
            self.outcomes[f"{ask.kind}: engine killed, {'left' if heard.left else 'told'}"] += 1
        elif faults(ask, heard) or late:
            self.outcomes[f"{ask.kind}: engine killed, not told"] += 1
            self.fault(
                f"{ask.kind}: the engine was killed {heard.ended_at - heard.killed_at:.2f} s before its end,"
                f" which was: {faults(ask, heard) or 'clean'} {heard.error} | {shown(ask)}"
            )
        else:
            self.outcomes[f"{ask.kind}: engine killed, had ended"] += 1

    def _count(self, ask: Ask, heard: Heard) -> None:
        assert heard.usage is not None
        self.prompt_tokens += heard.usage["prompt_tokens"]
        self.cached_tokens += heard.usage["prompt_tokens_details"]["cached_tokens"]
        self.output_tokens += heard.usage["completion_tokens"]
        self.at_worst("request", heard.ended_at - heard.began_at, ask.kind)
        if heard.first_text_s is not None:
            self.at_worst("first_text", heard.first_text_s, ask.kind)
            if not ask.pause_s:
                self.at_worst("gap", heard.gap_s, ask.kind)
        if isinstance(ask.must, Answered) and ask.must.text is not None:
            if heard.texts[0] == ask.must.text:
                self.probes_right += 1
            else:
                difference = Difference(ask=ask, wanted=ask.must.text, found=heard.texts[0])
                self.differences.append(difference)

    def numbers(self) -> dict[str, Any]:
        """For the report."""
        return {
            "requests": sum(self.outcomes.values()),
            "outcomes": dict(sorted(self.outcomes.items())),
            "disconnects": sum(self.left_after.values()),
            "left_after": dict(sorted(self.left_after.items())),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "refused_429": self.refused_429,
            "unavailable_503": self.unavailable_503,
            "probes_right": self.probes_right,
            "worst_s": self.worst,
            "num_faults": self.num_faults,
            "faults": self.faults,
        }


def outcome(heard: Heard, found: list[str]) -> str:
    """One word for the counts."""
    if found:
        return "fault"
    if heard.left:
        return "left"
    if heard.status != 200:
        return str(heard.status)
    reasons = {reason for reasons in heard.reasons.values() for reason in reasons}
    return " and ".join(sorted(reasons))


def shown(ask: Ask) -> str:
    """Enough of it to ask again."""
    return (
        f"{ask.method} {ask.path} {ask.probe} {ask.leave or ''} {str(ask.body)[:SHOWN_CHARACTERS]}"
    )
