"""What chat and completions do alike with a request: name it, read it, keep its client informed."""

import asyncio
from dataclasses import dataclass
from typing import Generic

from litestar import Request
from litestar.datastructures import State

from firmtoken.runtime.server.errors import OtherHttp
from firmtoken.runtime.server.request_id import request_id_of
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.wire import Body, SamplingFields, read_body

HttpRequest = Request[None, None, State]
NEVER_S = 30 * 86_400.0
BODY_S = 60.0
"""How long a client may take to send its request."""
MAX_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming(Generic[Body]):
    """A body that was read, and what its answer carries in any case."""

    body: Body
    request_id: str
    headers: dict[str, str]


async def read_request(request: HttpRequest, kind: type[Body], service: Service) -> Incoming[Body]:
    """Read and check the body; unknown fields are named in a header and once in the log."""
    body, unknown = read_body(await _whole(request, service), kind)
    service.warn_ignored(unknown)
    return Incoming(
        body=body, request_id=request_id_of(request.scope), headers=_ignored_header(unknown)
    )


async def _whole(request: HttpRequest, service: Service) -> bytes:
    """The bytes of the body; one that stops coming holds up neither its connection nor a draining server."""
    reading = asyncio.ensure_future(request.body())
    closing = asyncio.ensure_future(service.engine.wait_closing())
    try:
        await asyncio.wait((reading, closing), timeout=BODY_S, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return reading.result()
        if closing.done():
            service.engine.require_ready()  # raises: it says why it takes nothing
        raise OtherHttp(
            f"the body was not complete after {BODY_S:g} s", status=408, code="request_timeout"
        )
    finally:
        for task in (reading, closing):
            task.cancel()
        await asyncio.gather(reading, closing, return_exceptions=True)


def silence_of(fields: SamplingFields, service: Service) -> float:
    """Seconds without an event after which a stream sends a comment."""
    asked = fields.sse_ping_interval
    interval = service.keep_alive_s if asked is None else asked
    return interval if interval > 0 else NEVER_S


def stops_of(fields: SamplingFields) -> tuple[str, ...]:
    """The stop strings."""
    if fields.stop is None:
        return ()
    return (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop)


def wants_usage(fields: SamplingFields) -> bool:
    """Whether the stream ends in a usage chunk."""
    return fields.stream_options is not None and bool(fields.stream_options.include_usage)


def wants_running_usage(fields: SamplingFields) -> bool:
    """Whether each chunk of the stream carries the usage so far."""
    return fields.stream_options is not None and bool(fields.stream_options.continuous_usage_stats)


def _ignored_header(names: tuple[str, ...]) -> dict[str, str]:
    # Names are a stranger's text: only what a header may hold is repeated.
    plain = [name for name in names if name.isascii() and name.isprintable() and len(name) <= 64]
    return {"x-ft-ignored": ", ".join(plain[:MAX_NAMED])} if plain else {}
