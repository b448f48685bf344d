"""Measures the engine alone: requests go to the child process over its socket, without HTTP and without text."""

import asyncio
import logging
import time
from collections.abc import Sequence

from firmtoken.runtime.bench.rows import Stream
from firmtoken.runtime.engine.messages import Add, Done, Sampling, Stats
from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.life import Ending, EngineSpec
from firmtoken.runtime.server.session import Token

STOP_GRACE_S = 10.0
STALL_S = 600.0
COUNTED_S = 0.01
"""How often an engine that has just become idle is asked whether its counters are here."""


class EngineBench:
    """One engine, used as an async context."""

    def __init__(self, spec: EngineSpec, sampling: Sampling, log: logging.Logger) -> None:
        self._sampling = sampling
        self._tokens = 0
        self._client = EngineClient(spec, log=log, clock=time.monotonic)

    @property
    def death(self) -> Ending | None:
        """Why the engine is gone, if it ended by itself."""
        return self._client.death

    async def __aenter__(self) -> "EngineBench":
        await self._client.start()
        try:
            await self._client.wait_ready()
        except BaseException:
            await self._client.stop(grace_s=0)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.stop(grace_s=STOP_GRACE_S)

    async def run(self, prompts: Sequence[Sequence[int]], *, output: int) -> list[Stream]:
        """All prompts at once, `output` tokens each."""
        return list(await asyncio.gather(*(self._stream(prompt, output) for prompt in prompts)))

    async def counters(self) -> Stats:
        """Those after all that has ended; the engine sends them when it becomes idle."""
        while (found := self._client.stats) is None or found.output_tokens < self._tokens:
            self._client.require_ready()
            await asyncio.sleep(COUNTED_S)
        return found

    async def _stream(self, prompt: Sequence[int], output: int) -> Stream:
        session = self._client.open_session()
        arrivals: list[float] = []
        start = time.perf_counter()
        session.submit(
            Add(
                request_id=self._client.take_id(),
                token_ids=list(prompt),
                max_output=output,
                sampling=self._sampling,
                stop_token_ids=[],
            )
        )
        try:
            while True:
                for event in await session.events(timeout_s=STALL_S):
                    if isinstance(event, Token):
                        arrivals.append(time.perf_counter() - start)
                        self._tokens += 1
                    elif isinstance(event, Done):
                        return Stream(
                            arrivals=tuple(arrivals),
                            tokens=len(arrivals),
                            cached=event.cached_tokens,
                        )
        finally:
            session.close()
