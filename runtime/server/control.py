"""`Control`: what the server shares with its engines besides host memory: where they are, and their stacks."""

import asyncio
import mmap
import os
from collections.abc import Callable

from firmtoken.runtime.engine.position import POSITION_BYTES, PositionReader

STACKS_AFTER_S = 1.0
"""How long a process may take to write its stacks; the signal is handled even where Python never runs again."""
QUIET_S = 0.05
"""Nothing more was written for so long: the stacks are complete."""


class Control:
    """Anonymous files that outlive an engine; `descriptors` are handed to each, in this order."""

    def __init__(self) -> None:
        self._position = os.memfd_create("ft-position", os.MFD_CLOEXEC)
        self._stacks = os.memfd_create("ft-stacks", os.MFD_CLOEXEC)
        os.ftruncate(self._position, POSITION_BYTES)
        self._map = mmap.mmap(self._position, POSITION_BYTES)
        self._asking = asyncio.Lock()
        self.reader = PositionReader(self._map)

    @property
    def descriptors(self) -> tuple[int, int]:
        """Position, stacks."""
        return self._position, self._stacks

    def restart(self, due_s: float) -> None:
        """A new engine begins, which has to show a sign of life within that time."""
        self.reader.restart(due_s)
        self._empty_stacks()

    async def stacks(self, signal_it: Callable[[], None]) -> str:
        """Stacks of all threads of the engine, which writes them when it gets the signal; empty if it does not."""
        async with self._asking:
            return await self._ask(signal_it)

    async def _ask(self, signal_it: Callable[[], None]) -> str:
        if not self.reader.answers:
            return ""
        self._empty_stacks()
        signal_it()
        waited, size = 0.0, 0
        while waited < STACKS_AFTER_S:
            await asyncio.sleep(QUIET_S)
            waited += QUIET_S
            found = os.fstat(self._stacks).st_size
            if found and found == size:
                break
            size = found
        return os.pread(self._stacks, size, 0).decode("utf-8", errors="replace")

    def close(self) -> None:
        """Give the memory back; the second call does nothing."""
        if self._map.closed:
            return
        self.reader.close()
        self._map.close()
        os.close(self._position)
        os.close(self._stacks)

    def _empty_stacks(self) -> None:
        os.ftruncate(self._stacks, 0)
        # The engine writes where we point: it shares our offset.
        os.lseek(self._stacks, 0, os.SEEK_SET)
