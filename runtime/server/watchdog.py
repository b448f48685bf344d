"""The watchdog: notices that the engine has missed its deadline (D18)."""

from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.runtime.engine.position import PositionReader

TICK_S = 0.1
LONGEST_TICK_S = 2 * TICK_S
"""A later tick was held up: our loop was busy, the machine slept, the clock jumped. That time is not the engine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """A deadline that went by."""

    due_s: float
    waited_s: float
    silent: bool
    """Nothing was running: the engine holds requests and begins nothing."""


class Watchdog:
    """Counts the time since the engine last began a unit, as it sees it pass."""

    def __init__(
        self, position: PositionReader, clock: Callable[[], float], *, answer_s: float
    ) -> None:
        self._position = position
        self._clock = clock
        self._answer_s = answer_s
        self._units = position.units
        self._looked_at = clock()
        self.waited_s = 0.0

    def look(self, *, asked: bool) -> Missed | None:
        """The deadline that was missed, if one was; `asked`: the engine holds requests."""
        now = self._clock()
        elapsed = min(max(0.0, now - self._looked_at), LONGEST_TICK_S)
        self._looked_at = now
        units, due_s = self._position.units, self._position.due_s
        silent = due_s == 0
        if units != self._units or (silent and not asked):
            self._units, self.waited_s = units, 0.0
            return None
        self.waited_s += elapsed
        limit = self._answer_s if silent else due_s
        if self.waited_s <= limit:
            return None
        return Missed(due_s=limit, waited_s=self.waited_s, silent=silent)
