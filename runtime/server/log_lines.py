"""The last lines of the log, kept in memory for reports."""

import logging
from collections import deque

MOST_LINES = 200
LONGEST = 2000
"""Characters of a line: what a program prints before it dies may be a megabyte long."""


class LogLines(logging.Handler):
    """Keeps what was logged last; any thread may log and read."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """logging's side: remember a record, a stack line by line."""
        self._lines.extend(line[:LONGEST] for line in self.format(record).splitlines())

    def lines(self) -> tuple[str, ...]:
        """Oldest first."""
        self.acquire()
        try:
            return tuple(self._lines)
        finally:
            self.release()
