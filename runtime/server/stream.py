"""Answers as bytes: event streams with their own frames, and whole bodies that end early when nobody listens."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar  # Any: asyncio's type of a coroutine that is only awaited

import msgspec
from litestar.response.base import ASGIResponse
from litestar.response.streaming import ASGIStreamingResponse
from litestar.types import Receive, Send

from firmtoken.runtime.server.errors import ApiError, InternalError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class EventStream(ASGIStreamingResponse):
    """Server-sent events; `on_end` runs once, whether the stream was read to its end, left, or never begun."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        headers: dict[str, str],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(
            iterator=frames,
            media_type="text/event-stream",
            headers=headers | STREAM_HEADERS,
            status_code=200,
        )
        self._frames = frames
        self._on_end = on_end

    async def send_body(self, send: Send, receive: Receive) -> None:
        """Send frame by frame, listening for the client's leaving from the first moment."""
        try:
            await super().send_body(send, receive)
        finally:
            # A generator that is left at a `yield` would otherwise be cleaned up whenever it is collected.
            self._on_end()
            await self._frames.aclose()


def streamed(
    frames: AsyncGenerator[bytes, None],
    *,
    headers: dict[str, str],
    on_end: Callable[[], None],
    log: logging.Logger,
) -> EventStream:
    """An answer as it grows; a failure is its last event."""
    return EventStream(ending_in_error(frames, log), headers=headers, on_end=on_end)


async def collected(
    work: Coroutine[Any, Any, msgspec.Struct],
    receive: Receive,
    *,
    headers: dict[str, str],
    on_end: Callable[[], None],
) -> ASGIResponse:
    """An answer in one body; `on_end` runs once, also when the client leaves before."""
    try:
        answer = await unless_gone(receive, work)
    finally:
        on_end()
    return json_response(answer, headers=headers)


def data_frame(message: msgspec.Struct) -> bytes:
    """One event. Litestar's own writes CRLF, which breaks clients that split on a blank line."""
    return b"data: " + msgspec.json.encode(message) + b"\n\n"


async def ending_in_error(
    frames: AsyncIterator[bytes], log: logging.Logger
) -> AsyncGenerator[bytes, None]:
    """The same frames; a failure becomes the error frame that openai-python raises, not a clean-looking end."""
    try:
        async for frame in frames:
            yield frame
    except ApiError as error:
        yield _error_frames(error)
    except Exception as error:  # the last handler of a stream: status and headers are long sent
        log.error("a stream failed", exc_info=error)
        yield _error_frames(InternalError("the server failed, its log has more"))


def _error_frames(error: ApiError) -> bytes:
    return b"data: " + error.body() + b"\n\n" + DONE


def json_response(
    message: msgspec.Struct, *, headers: dict[str, str], status: int = 200
) -> ASGIResponse:
    """A whole answer."""
    return ASGIResponse(
        body=msgspec.json.encode(message),
        media_type="application/json",
        headers=headers,
        status_code=status,
    )


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or `ClientGone` as soon as the client leaves; `work` is then cancelled."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
