"""Why requests wait: said every few seconds, for as long as they do."""

from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence

SAY_EVERY_S = 5.0


@dataclass(slots=True, kw_only=True)
class Wait:
    """One request in the queue."""

    since: float
    said_at: float


class Waits:
    """Looks at the queue whenever it is asked; times are the clock's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits: dict[int, Wait] = {}

    def lines(self, scheduler: Scheduler) -> list[str]:
        """A line for each request that nothing was said about for `SAY_EVERY_S`."""
        if not scheduler.waiting:
            self._waits.clear()
            return []
        now = self._clock()
        known = self._waits
        self._waits = {
            sequence.request_id: known.get(sequence.request_id) or Wait(since=now, said_at=now)
            for sequence in scheduler.waiting
        }
        lines = []
        for sequence in scheduler.waiting:
            wait = self._waits[sequence.request_id]
            if now - wait.said_at >= SAY_EVERY_S:
                wait.said_at = now
                lines.append(
                    f"request {sequence.request_id} waits since {now - wait.since:.0f} s, "
                    f"{len(scheduler.waiting)} in the queue: {reason(sequence, scheduler)}"
                )
        return lines


def reason(sequence: Sequence, scheduler: Scheduler) -> str:
    """What this request waits for, with numbers."""
    if sequence.shortage is not None:
        return str(sequence.shortage)
    head = scheduler.waiting[0]
    if sequence is not head and head.shortage is not None:
        return f"request {head.request_id} is ahead of it: {head.shortage}"
    span = scheduler.open_span
    tokens = 0 if span is None else span.num_tokens
    return f"{tokens} tokens of {len(scheduler.running)} running requests are computed first"
