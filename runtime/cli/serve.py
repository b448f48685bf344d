"""Serves one plan until a signal or the engine's end: the server comes up first, the engine loads behind it.

First SIGINT or SIGTERM: running requests are finished, then exit 0. Second, or first before ready: exit 130 or 143.
"""

import asyncio
import logging
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from firmtoken.runtime.cli.failure import say
from firmtoken.runtime.server.app import create_app
from firmtoken.runtime.server.client import EngineClient, EngineSpec
from firmtoken.runtime.server.errors import ApiError
from firmtoken.runtime.server.listen import Listener
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.serving import ServingPlan

KEEP_ALIVE_S = 15.0
STOP_GRACE_S = 10.0
"""How long an engine that was asked to leave may take for its last step."""
LAST_WORDS_S = 3.0
"""How long clients of a dead engine have to read why."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that one server is made of."""

    plan: ServingPlan
    plan_json: bytes
    model: ServedModel
    listener: Listener
    key_hashes: tuple[bytes, ...]
    engine: EngineSpec


def serve(launch: Launch) -> int:
    """Run to the end; the exit code of D10."""
    return asyncio.run(_Serving(launch, log=start_log()).run())


def start_log() -> logging.Logger:
    """Lines to stderr: time, level, text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("firmtoken")
    log.setLevel(logging.INFO)
    log.handlers = [handler]
    log.propagate = False
    web = logging.getLogger("uvicorn.error")
    web.setLevel(logging.WARNING)
    web.handlers = [handler]
    web.propagate = False
    return log


class _Server(uvicorn.Server):
    """uvicorn, with its signals left to us: they concern the engine as well."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Serving:
    """One run: the server's task, the engine, and the signals that came."""

    def __init__(self, launch: Launch, *, log: logging.Logger) -> None:
        self._launch = launch
        self._log = log
        self._engine = EngineClient(launch.engine, log=log, clock=time.monotonic)
        service = Service(
            plan=launch.plan,
            plan_json=launch.plan_json,
            model=launch.model,
            engine=self._engine,
            log=log,
            clock=time.monotonic,
            wall_clock=time.time,
            draw_seed=lambda: secrets.randbits(63),
            keep_alive_s=KEEP_ALIVE_S,
        )
        app = create_app(service, key_hashes=launch.key_hashes)
        self._server = _Server(
            uvicorn.Config(app, log_config=None, access_log=False, lifespan="off")
        )
        self._exit_code = 0
        self._forced = False

    async def run(self) -> int:
        """Serve to the end; the exit code."""
        loop = asyncio.get_running_loop()
        for signum in SIGNALS:
            loop.add_signal_handler(signum, self._on_signal, signum)
        listening = asyncio.create_task(self._server.serve(sockets=[self._launch.listener.socket]))
        await self._engine.start()
        watching = asyncio.create_task(self._watch_engine(listening))
        try:
            await self._announce()
            await listening
        finally:
            await self._engine.stop(grace_s=0 if self._forced else STOP_GRACE_S)
            await watching
        return self._exit_code

    async def _announce(self) -> None:
        try:
            await self._engine.wait_ready()
        except ApiError:
            return
        address = self._launch.listener.address
        print(f"ready {address} serves {self._launch.plan.model}", flush=True)

    async def _watch_engine(self, listening: asyncio.Task[None]) -> None:
        """When the engine ends by itself: say why, let clients read it, leave with its code."""
        await self._engine.wait_ended()
        death = self._engine.death
        if death is None:
            return
        say(f"the engine is dead: {death.message}", death.hint)
        self._exit_code = self._exit_code or death.exit_code
        self._server.should_exit = True
        await asyncio.wait((listening,), timeout=LAST_WORDS_S)
        self._server.force_exit = True

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if self._engine.state == "ready":
            self._log.info(
                "%s: %d requests are finished first, again to leave at once",
                name,
                self._engine.num_running + self._engine.num_waiting,
            )
            self._engine.drain()
        else:
            self._log.info("%s: leaving at once", name)
            self._exit_code = 128 + signum
            self._forced = True
            self._server.force_exit = True
            self._engine.leave()
        self._server.should_exit = True
