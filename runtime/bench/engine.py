"""Measures the engine alone: requests go to the child process over its socket, without HTTP and without text."""

import asyncio
import logging
import time
from collections.abc import Sequence

from firmtoken.runtime.bench.rows import Stream
from firmtoken.runtime.engine.messages import Add, Done, Sampling
from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.life import Ending, EngineSpec
from firmtoken.runtime.server.session import Token

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
STOP_GRACE_S = 10.0
STALL_S = 600.0


class EngineBench:
    """One engine, used as an async context."""

    def __init__(self, spec: EngineSpec, log: logging.Logger) -> None:
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
        """All prompts at once, greedy, `output` tokens each."""
        return list(await asyncio.gather(*(self._stream(prompt, output) for prompt in prompts)))

    async def _stream(self, prompt: Sequence[int], output: int) -> Stream:
        session = self._client.open_session()
        arrivals: list[float] = []
        start = time.perf_counter()
        session.submit(
            Add(
                request_id=self._client.take_id(),
                token_ids=list(prompt),
                max_output=output,
                sampling=GREEDY,
                stop_token_ids=[],
            )
        )
        try:
            while True:
                for event in await session.events(timeout_s=STALL_S):
                    if isinstance(event, Token):
                        arrivals.append(time.perf_counter() - start)
                    elif isinstance(event, Done):
                        return Stream(arrivals=tuple(arrivals), tokens=len(arrivals))
        finally:
            session.close()
