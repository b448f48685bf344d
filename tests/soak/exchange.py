"""One HTTP exchange as a client lives it: what is asked, what must come, what came, when it left. Judges nothing."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

MAX_RETRY_S = 2.0

Moment = Literal["silence", "role", "text"]
"""What the client had heard last: nothing, that it was admitted (chat streams say so), or text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """When a client goes away: `delay_s` after it heard `after`; the `count`-th piece of it, if text."""

    after: Moment
    delay_s: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A 200 with these properties."""

    choices: int = 1
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """Exactly."""
    output_most: int | None = None
    text: str | None = None
    """What the same prompt was answered cold and alone."""
    forbidden: tuple[str, ...] = ()
    """Stop strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """An error with this status and code."""

    status: int
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request."""

    kind: str
    """For the counts of the report."""
    path: str
    body: Mapping[str, Any] | bytes  # Any: JSON
    must: Answered | Refused
    leave: Leave | None = None
    method: str = "POST"
    probe: str = ""
    pause_s: float = 0.0
    """A slow reader: how long it sleeps in the middle."""

    @property
    def stream(self) -> bool:
        """Whether events are asked for."""
        return isinstance(self.body, Mapping) and bool(self.body.get("stream"))


@dataclass(slots=True, kw_only=True)
class Heard:
    """What came."""

    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, list[str]] = field(default_factory=dict)
    """Every finish reason that was said, by choice."""
    usage: dict[str, Any] | None = None  # Any: JSON
    error: dict[str, Any] | None = None
    ended: bool = False
    """The body came to its end; of a stream: `[DONE]` was its last event."""
    broken: str = ""
    """The connection failed, or nothing came within the bound."""
    moment: Moment = "silence"
    left: bool = False
    refused: int = 0
    """429 before it was taken."""
    unavailable: int = 0
    """503 before it was taken."""
    began_at: float = 0.0
    ended_at: float = 0.0
    first_text_s: float | None = None
    gap_s: float = 0.0
    num_pieces: int = 0
    turned_away: bool = False
    """It would have left, but was not even let in."""
    killed_at: float | None = None
    """When the engine was killed under it."""


class Exchange:
    """Sends an `Ask`; repeats it while it is told to come back."""

    def __init__(self, http: httpx.AsyncClient, bound_s: float, *, outages: bool) -> None:
        self._http = http
        self._bound_s = bound_s
        self._outages = outages
        self._open: dict[int, Heard] = {}

    def note_killed(self, now: float) -> int:
        """The engine was killed: how many had been sent and not ended."""
        for heard in self._open.values():
            heard.killed_at = now
        return len(self._open)

    async def close(self) -> None:
        """Give back every connection."""
        await self._http.aclose()

    async def run(self, ask: Ask, draw: random.Random) -> Heard:
        """What came in the end."""
        began = time.monotonic()
        refused = unavailable = 0
        while True:
            heard = Heard(began_at=time.monotonic(), refused=refused, unavailable=unavailable)
            left_s = began + self._bound_s - heard.began_at
            self._open[id(heard)] = heard
            await self._once(ask, heard, left_s)
            del self._open[id(heard)]
            heard.ended_at = time.monotonic()
            again = heard.status == 429 or (heard.status == 503 and self._outages)
            if not again or ask.leave is not None or left_s < MAX_RETRY_S:
                heard.turned_away = again and ask.leave is not None
                return heard
            refused += heard.status == 429
            unavailable += heard.status == 503
            await asyncio.sleep(draw.uniform(0.3, MAX_RETRY_S))

    async def _once(self, ask: Ask, heard: Heard, bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s):
                await self._maybe_leaving(ask, heard)
        except TimeoutError:
            heard.broken = f"no end within {bound_s:.0f} s, last heard: {heard.moment}"
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            # Also an answer in another shape than the protocol's: the run goes on, the report says it.
            heard.broken = f"{type(error).__name__}: {error}"

    async def _maybe_leaving(self, ask: Ask, heard: Heard) -> None:
        leave = ask.leave
        if leave is None:
            await self._exchange(ask, heard, None)
            return
        leaving = asyncio.timeout(leave.delay_s if leave.after == "silence" else None)
        try:
            async with leaving:
                await self._exchange(ask, heard, leaving)
        except TimeoutError:
            if not leaving.expired():
                raise
            heard.left = True

    async def _exchange(self, ask: Ask, heard: Heard, leaving: asyncio.Timeout | None) -> None:
        content = ask.body if isinstance(ask.body, bytes) else json.dumps(ask.body).encode()
        headers = {"content-type": "application/json"}
        async with self._http.stream(
            ask.method, ask.path, content=content, headers=headers
        ) as response:
            heard.status = response.status_code
            if not ask.stream or heard.status != 200:
                self._take_whole(json.loads(await response.aread()), heard)
                return
            async for data in events(response):
                if heard.ended:
                    raise ValueError("an event after [DONE]")
                if data == b"[DONE]":
                    heard.ended = True
                    continue
                await self._take_event(json.loads(data), heard, ask)
                _set_leaving(ask.leave, heard, leaving)

    def _take_whole(self, body: dict[str, Any], heard: Heard) -> None:
        heard.ended = True
        heard.error = body.get("error")
        heard.usage = body.get("usage")
        for choice in body.get("choices", ()):
            message = choice.get("message")
            heard.texts[choice["index"]] = choice["text"] if message is None else message["content"]
            heard.reasons[choice["index"]] = [choice["finish_reason"]]

    async def _take_event(self, event: dict[str, Any], heard: Heard, ask: Ask) -> None:
        if "error" in event:
            heard.error = event["error"]
            return
        heard.usage = event.get("usage") or heard.usage
        for choice in event["choices"]:
            index = choice["index"]
            delta = choice.get("delta")
            text = choice["text"] if delta is None else delta.get("content") or ""
            heard.texts[index] = heard.texts.get(index, "") + text
            if choice["finish_reason"] is not None:
                heard.reasons.setdefault(index, []).append(choice["finish_reason"])
            if text:
                _note_text(heard)
                if ask.pause_s and heard.num_pieces == 2:
                    await asyncio.sleep(ask.pause_s)
            elif heard.moment == "silence":
                heard.moment = "role"


async def events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event. httpx's own lines would also be cut at U+2028, which JSON may hold."""
    rest = b""
    async for part in response.aiter_bytes():
        *whole, rest = (rest + part).split(b"\n\n")
        for event in whole:
            if event.startswith(b"data: "):
                yield event.removeprefix(b"data: ")
            elif not event.startswith(b":"):
                raise ValueError(f"no event: {event[:80]!r}")
    if rest:
        raise ValueError(f"half an event: {rest[:80]!r}")


def _note_text(heard: Heard) -> None:
    now = time.monotonic()
    if heard.first_text_s is None:
        heard.first_text_s = now - heard.began_at
    else:
        heard.gap_s = max(heard.gap_s, now - heard.ended_at)
    heard.ended_at = now  # until the end: when the last text came
    heard.moment = "text"
    heard.num_pieces += 1


def _set_leaving(leave: Leave | None, heard: Heard, leaving: asyncio.Timeout | None) -> None:
    """The client's patience begins when it has heard what it waits for."""
    if leave is None or leaving is None or leaving.when() is not None:
        return
    reached = heard.moment == leave.after or (leave.after == "role" and heard.moment == "text")
    if reached and (leave.after == "role" or heard.num_pieces >= leave.count):
        leaving.reschedule(asyncio.get_running_loop().time() + leave.delay_s)


def streamed(ask: Ask, *, stream: bool) -> Ask:
    """The same request, as events or whole, with usage in both cases."""
    assert isinstance(ask.body, Mapping)
    if not stream:
        return ask
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return replace(ask, kind=f"{ask.kind}, stream", body={**ask.body, **options})
