"""Serves one plan until a signal or the engine's end: the server comes up first, the engine loads behind it.

First SIGINT or SIGTERM: running requests are finished, then exit 0; at once while the engine restarts, when nothing
runs. Second, first before ready, or requests that do not end in time: exit 130 or 143. An engine that died for good
keeps its code.
"""

import asyncio
import gc
import logging
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import uvicorn

from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.exit_codes import ENGINE_DIED, FAILED, REFUSED
from firmtoken.runtime.server.app import create_app
from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.errors import ApiError
from firmtoken.runtime.server.life import EngineSpec
from firmtoken.runtime.server.listen import Listener
from firmtoken.runtime.server.log_lines import LogLines
from firmtoken.runtime.server.process import NoSegments
from firmtoken.runtime.server.rehearsal import rehearse
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.serving import ServingPlan

KEEP_ALIVE_S = 15.0
STOP_GRACE_S = 10.0
"""How long an engine that was asked to leave may take for its last step."""
PARTING_S = 0.2
"""How long clients have to be told that the server leaves at once."""
LAST_WORDS_S = 3.0
"""How long clients of a dead engine have to read why."""
DRAIN_S = 60.0
"""How long running requests have to end after the first signal."""
MOST_DESCRIPTORS = 65_536
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that one server is made of."""

    plan: ServingPlan
    plan_json: bytes
    model: ServedModel
    listener: Listener
    key_hashes: tuple[bytes, ...]
    log_file: logging.Handler | None
    """Where the log goes beside stderr."""
    engine: EngineSpec


def serve(launch: Launch) -> int:
    """Run to the end; the exit code of D10."""
    _raise_descriptor_limit()
    lines = LogLines()
    log = start_log(launch.log_file, lines)
    try:
        serving = _Serving(launch, log=log, log_lines=lines.lines)
    except NoSegments as error:
        hint = "free memory, raise `ulimit -f`, or ask for less under `hardware.host`"
        raise Failure(str(error), exit_code=REFUSED, hint=hint) from error
    exit_code = asyncio.run(serving.run())
    serving.say_death()
    return exit_code


def _raise_descriptor_limit() -> None:
    """A connection is a descriptor, and so is what the next engine is started with: the soft limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def start_log(file: logging.Handler | None, lines: LogLines) -> logging.Logger:
    """Lines to stderr, to `file` and to `lines`: time, level, text."""
    handlers = [logging.StreamHandler(sys.stderr), lines, *(() if file is None else (file,))]
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("firmtoken")
    log.setLevel(logging.INFO)
    log.handlers = list(handlers)
    log.propagate = False
    web = logging.getLogger("uvicorn.error")
    web.setLevel(logging.WARNING)
    web.handlers = list(handlers)
    web.propagate = False
    return log


def file_log(file: logging.Handler | None) -> logging.Logger:
    """What is said on stderr in another form, for the file alone."""
    log = logging.getLogger("firmtoken.file")
    log.handlers = [logging.NullHandler() if file is None else file]
    log.propagate = False
    return log


class _Server(uvicorn.Server):
    """uvicorn, with its signals left to us: they concern the engine as well."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cut(self) -> None:
        """End at once: a client that does not read would hold its connection, and newer Pythons wait for it."""
        self.force_exit = True
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


class _Serving:
    """One run: the server's task, the engine, and the signals that came."""

    def __init__(
        self, launch: Launch, *, log: logging.Logger, log_lines: Callable[[], Sequence[str]]
    ) -> None:
        self._launch = launch
        self._log = log
        self._engine = EngineClient(
            launch.engine, log=log, clock=time.monotonic, log_lines=log_lines
        )
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
        self._timers: list[asyncio.TimerHandle] = []
        self._exit_code = 0
        self._forced = False

    async def run(self) -> int:
        """Serve to the end; the exit code."""
        loop = asyncio.get_running_loop()
        for signum in SIGNALS:
            loop.add_signal_handler(signum, self._on_signal, signum)
        listening = asyncio.create_task(self._server.serve(sockets=[self._launch.listener.socket]))
        try:
            await self._engine.start()
        except OSError as error:
            listening.cancel()
            raise Failure(
                f"the engine could not be started: {error.strerror}",
                exit_code=FAILED,
                hint="`ulimit -a` and `free` tell what is short",
            ) from error
        watching = asyncio.create_task(self._watch_engine(listening))
        try:
            await rehearse(self._launch.model)  # while the engine loads
            gc.collect()
            gc.freeze()  # what is here stays: no stream waits until all of it was looked through
            await self._announce()
            await listening
        finally:
            await self._engine.stop(grace_s=0 if self._forced else STOP_GRACE_S)
            await watching
            for timer in self._timers:
                timer.cancel()
            # What is left is to leave: a signal now must not change how.
            for signum in SIGNALS:
                loop.remove_signal_handler(signum)
                signal.signal(signum, signal.SIG_IGN)
        return self._exit_code

    async def _announce(self) -> None:
        try:
            await self._engine.wait_ready()
        except ApiError:
            return
        address = self._launch.listener.address
        print(f"ready {address} serves {self._launch.plan.model}", flush=True)

    async def _watch_engine(self, listening: asyncio.Task[None]) -> None:
        """When the engine ends by itself: let clients read why, leave with its code."""
        await self._engine.wait_ended()
        death = self._engine.death
        if death is None:
            return
        self._exit_code = death.exit_code
        self._server.should_exit = True
        file_log(self._launch.log_file).error("%s", death.cause)  # stderr gets it from `say_death`
        await asyncio.wait((listening,), timeout=LAST_WORDS_S)
        self._server.cut()

    def say_death(self) -> None:
        """Once nobody says anything any more: the first cause is the last line, which a service manager shows."""
        death = self._engine.death
        if death is None:
            return
        if death.exit_code == ENGINE_DIED:
            say(f"hint: {death.hint}", None)
            say(f"the engine is dead: {death.cause}", None)
        else:
            say(death.cause, death.hint)

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if self._engine.state == "dead":
            # It has its own exit code, and its clients are being told.
            self._server.should_exit = True
            return
        if self._engine.state == "restarting":
            self._log.info("%s: nothing runs, leaving", name)
            self._engine.leave()
            # Clients that are being told may read it, and no longer.
            self._later(LAST_WORDS_S, self._server.cut)
        elif self._engine.state == "ready":
            self._log.info(
                "%s: no new requests; open ones (%d) have %.0f s to end; once more to leave at once",
                name,
                self._engine.held.num_running + self._engine.held.num_waiting,
                DRAIN_S,
            )
            self._engine.drain()
            self._later(DRAIN_S, partial(self._give_up, signum))
        else:
            self._log.info("%s: leaving at once", name)
            self._leave(signum)
            # An error event on its way is worth a moment.
            self._later(PARTING_S, self._server.cut)
        self._server.should_exit = True

    def _give_up(self, signum: int) -> None:
        """Requests have not ended in time: they are told so, then cut."""
        left = len(self._server.server_state.connections)
        self._log.warning("%d connections are still open after %g s: leaving", left, DRAIN_S)
        self._leave(signum)
        self._later(LAST_WORDS_S, self._server.cut)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, action))

    def _leave(self, signum: int) -> None:
        self._exit_code = 128 + signum
        self._forced = True
        self._engine.leave()
