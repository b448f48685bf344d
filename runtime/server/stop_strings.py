"""Ends a text at the first stop string, however the text is cut."""

from collections.abc import Sequence

from firmtoken.runtime.dialects.partial import partial_end


class StopStrings:
    """The matcher of one answer. The string that is complete first wins; of two that end together, the longer.

    Text that may be the beginning of a stop string is held back, so nothing is shown that must be taken back.
    """

    def __init__(self, stops: Sequence[str], *, keep_stop: bool) -> None:
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._held = ""
        self.matched = False

    def feed(self, text: str) -> str:
        """What may be shown now; once `matched`, nothing more."""
        if self.matched:
            return ""
        text = self._held + text
        ends = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if ends:
            end, start = min(ends)
            self.matched, self._held = True, ""
            return text[: end if self._keep_stop else start]
        cut = len(text) - partial_end(text, self._stops)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """What was held back and is no stop after all."""
        held, self._held = self._held, ""
        return held
