"""How often an engine may come back: a few times in a while, each later than the one before."""

from collections import deque
from typing import Generic, TypeVar

MOST = 3
WINDOW_S = 600.0
BACK_OFF_S = (0.0, 1.0, 5.0)
"""Before the first, second, third restart of a window."""

Cause = TypeVar("Cause")


class Restarts(Generic[Cause]):
    """Remembers when engines came back and after what; what is older than the window counts no more."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._taken: deque[tuple[float, Cause]] = deque()

    def take(self, now: float, cause: Cause) -> float | None:
        """Seconds to wait before the next one; None if none is left."""
        used = self.used(now)
        if used >= self.most:
            return None
        self._taken.append((now, cause))
        return BACK_OFF_S[min(used, len(BACK_OFF_S) - 1)]

    def used(self, now: float) -> int:
        """Restarts of the window that ends now."""
        while self._taken and now - self._taken[0][0] >= WINDOW_S:
            self._taken.popleft()
        return len(self._taken)

    def first_cause(self, now: float) -> Cause | None:
        """Of that window: what follows is mostly its echo."""
        return self._taken[0][1] if self.used(now) else None
