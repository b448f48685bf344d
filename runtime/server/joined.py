"""`Joined`: work that several ask for at the same time is done once, and all get its result."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar  # Any: what a coroutine is sent, which is nothing

from firmtoken.runtime.server.errors import Draining

Result = TypeVar("Result")


class Joined(Generic[Result]):
    """Used from one event loop."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> None:
        self._work = work
        self._task: asyncio.Task[Result] | None = None

    async def result(self) -> Result:
        """Of the work that goes on, or of one that begins now; raises what it raises, `Draining` if it is cancelled."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        task = self._task
        try:
            return await asyncio.shield(task)  # one who leaves must not take it from the others
        except asyncio.CancelledError:
            if task.cancelled():
                raise Draining("the server is shutting down") from None
            raise

    async def cancel(self) -> None:
        """Return once nothing goes on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
