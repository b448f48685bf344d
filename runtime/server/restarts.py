"""How often an engine may come back: a few times in a while, each later than the one before."""

from collections import deque

MOST = 3
WINDOW_S = 600.0
BACK_OFF_S = (0.0, 1.0, 5.0)
"""Before the first, second, third restart of a window."""


class Restarts:
    """Remembers when engines came back; what is older than the window counts no more."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._taken: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """Seconds to wait before the next one; None if none is left."""
        while self._taken and now - self._taken[0] >= WINDOW_S:
            self._taken.popleft()
        if len(self._taken) >= self._most:
            return None
        self._taken.append(now)
        return BACK_OFF_S[min(len(self._taken), len(BACK_OFF_S)) - 1]

    @property
    def used(self) -> int:
        """Restarts of this window, as of the last `take`."""
        return len(self._taken)
