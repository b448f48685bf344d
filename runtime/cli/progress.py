"""How far something long has come, on stderr: one line that moves on a terminal, a line now and then elsewhere."""

import sys
from collections import deque
from collections.abc import Callable
from shutil import get_terminal_size

WINDOW_S = 10.0
"""Time over which a rate is taken, so that a line which stalls is seen to stall."""
TERMINAL_EVERY_S, ELSEWHERE_EVERY_S = 0.5, 10.0
CLEAR = "\r\033[K"


class ByteProgress:
    """Of `total` bytes, `begun_at` of which were there before."""

    def __init__(
        self,
        phase: str,
        *,
        total: int,
        begun_at: int,
        clock: Callable[[], float],
        on_terminal: bool,
    ) -> None:
        self._phase = phase
        self._total = total
        self._begun_at = begun_at
        self._clock = clock
        self._on_terminal = on_terminal
        self._seen = deque([(clock(), begun_at)])
        self._said_at = clock()

    def __call__(self, arrived: int) -> None:
        """Say it, if it is time to; `arrived` since the start."""
        now, done = self._clock(), min(self._begun_at + arrived, self._total)
        every_s = TERMINAL_EVERY_S if self._on_terminal else ELSEWHERE_EVERY_S
        if now - self._said_at < every_s:
            return
        self._said_at = now
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        line = self._line(now, done)
        _say(line, on_terminal=self._on_terminal)

    def end(self) -> None:
        """Leave the line, so that the next text has its own."""
        _leave(on_terminal=self._on_terminal)

    def _line(self, now: float, done: int) -> str:
        then, before = self._seen[0]
        rate = (done - before) / (now - then) if now > then else 0.0
        left = f", {remaining((self._total - done) / rate)} left" if rate else ", nothing arrives"
        share = 100 * done // max(self._total, 1)
        return (
            f"{self._phase} {gigabytes(done)} of {gigabytes(self._total)} ({share} %), "
            f"{rate / 1e6:.1f} MB/s{left}"
        )


class CountProgress:
    """Of `total` things that are done one after another, by name."""

    def __init__(self, phase: str, *, total: int, on_terminal: bool) -> None:
        self._phase = phase
        self._total = total
        self._on_terminal = on_terminal
        self._begun = 0

    def begin(self, name: str) -> None:
        """Say that the next one begins: before it, because it may take long."""
        self._begun += 1
        line = f"{self._phase} {self._begun} of {self._total}: {name}"
        _say(line, on_terminal=self._on_terminal)

    def end(self) -> None:
        """Leave the line, so that the next text has its own."""
        _leave(on_terminal=self._on_terminal)


class LineProgress:
    """One line after another, as they come."""

    def __init__(self, *, on_terminal: bool) -> None:
        self._on_terminal = on_terminal

    def say(self, line: str) -> None:
        """The next one; on a terminal it takes the place of the one before."""
        _say(line, on_terminal=self._on_terminal)

    def end(self) -> None:
        """Leave the line, so that the next text has its own."""
        _leave(on_terminal=self._on_terminal)


def _say(line: str, *, on_terminal: bool) -> None:
    # A terminal has one row for it: what is longer would stay there.
    text = CLEAR + line[: get_terminal_size().columns - 1] if on_terminal else f"{line}\n"
    print(text, end="", file=sys.stderr, flush=True)


def _leave(*, on_terminal: bool) -> None:
    if on_terminal:
        print(CLEAR, end="", file=sys.stderr, flush=True)


def remaining(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def gigabytes(num_bytes: int) -> str:
    """`23.41 GB`, `20.7 MB`, `12 kB`: decimal, as the hub and disks are labelled."""
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:,.2f} GB"
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.0f} kB"
