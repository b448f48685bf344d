"""One HTTP request's side of the engine: what it submitted, and a mailbox for what comes back."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.runtime.engine.messages import Add, Admitted, Done
from firmtoken.runtime.server.errors import ApiError


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of one request."""

    request_id: int
    token_id: int


Event = Admitted | Token | Done


class Session:
    """Holds the engine's requests of one HTTP request; closing it aborts those that have not ended."""

    def __init__(
        self, submit: Callable[["Session", Add], None], abort: Callable[[int], None]
    ) -> None:
        self._submit = submit
        self._abort = abort
        self._open: set[int] = set()
        self._events: deque[Event] = deque()
        self._failure: ApiError | None = None
        self._wake = asyncio.Event()

    def submit(self, add: Add) -> None:
        """Hand a request to the engine."""
        self._submit(self, add)
        self._open.add(add.request_id)

    def abort(self, request_id: int) -> None:
        """Stop a request that has not ended; asked twice, it is sent once."""
        if request_id in self._open:
            self._open.remove(request_id)
            self._abort(request_id)

    def close(self) -> None:
        """Abort whatever has not ended."""
        for request_id in tuple(self._open):
            self.abort(request_id)

    async def events(self, *, timeout_s: float) -> tuple[Event, ...]:
        """What came since the last call, at least one event; raises `TimeoutError`, or why none will come."""
        if not self._events and self._failure is None:
            self._wake.clear()
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        # Whoever takes them may never wait elsewhere: a send to a client that has left does not.
        # Its leaving must be heard all the same, which takes a turn of the loop.
        await asyncio.sleep(0)
        if not self._events and self._failure is not None:
            raise self._failure
        events = tuple(self._events)
        self._events.clear()
        return events

    def deliver(self, event: Event) -> None:
        """The client's side: one event."""
        if isinstance(event, Done):
            self._open.discard(event.request_id)
        self._events.append(event)
        self._wake.set()

    def fail(self, failure: ApiError) -> None:
        """The client's side: nothing more will come."""
        self._open.clear()
        self._failure = failure
        self._wake.set()
