"""The server's end of the engine: hands it requests, spreads what it says, and brings it back when it ends."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec

from firmtoken.runtime.engine.messages import (
    Abort,
    Add,
    Admitted,
    Done,
    Fault,
    Frames,
    Log,
    Preempted,
    Progress,
    Ready,
    Stats,
    Tokens,
    Up,
)
from firmtoken.runtime.exit_codes import ENGINE_DIED
from firmtoken.runtime.server.aftermath import Aftermath, decide, failure
from firmtoken.runtime.server.control import Control
from firmtoken.runtime.server.errors import (
    Draining,
    EngineDead,
    EngineRestarting,
    ModelLoading,
)
from firmtoken.runtime.server.held import HeldRequests
from firmtoken.runtime.server.joined import Joined
from firmtoken.runtime.server.life import (
    Ending,
    EngineLife,
    EngineSpec,
    died,
    died_of_our_bug,
    ready_line,
)
from firmtoken.runtime.server.load_lines import LoadLines
from firmtoken.runtime.server.process import Segments, create_segments
from firmtoken.runtime.server.report import Report, Requests, write_report
from firmtoken.runtime.server.restarts import Restarts
from firmtoken.runtime.server.session import Session, Token

WRITE_S = 10.0
"""How long a report may take to be on the disk."""

State = Literal["loading", "ready", "restarting", "draining", "stopped", "dead"]


class EngineClient:
    """One engine after another, and all requests that the present one holds; used from one event loop."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        log: logging.Logger,
        clock: Callable[[], float],
        log_lines: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._spec = spec
        self._log = log
        self._clock = clock
        self._log_lines = log_lines
        self._segments = create_segments(spec.segments)
        self._control = Control()
        self._restarts: Restarts[Ending] = Restarts(spec.most_restarts)
        self.held = HeldRequests()
        self._next_id = 1
        self._frames = Frames(msgspec.msgpack.Decoder(Up))
        self._life: EngineLife | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._dumps = Joined(partial(self._report, "dump", "asked for"))
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = asyncio.Event()
        self._stopping = asyncio.Event()
        self._load_lines = LoadLines()
        self._start_s = 2
        """What an engine takes to be ready, and a second: when it is worth to come back."""
        self.state: State = "loading"
        self.progress = Progress(phase="starting", done=0, total=0)
        self.stats: Stats | None = None
        self.trouble: str | None = None
        """Why the engine that is being replaced ended."""
        self.death: Ending | None = None
        """Why there is no engine any more: the first cause, where restarts did not help."""
        self._condemned = False
        """The present engine has to go: what it still says does not count."""

    @property
    def engine_pid(self) -> int:
        """The process of the present engine, or of the last one."""
        return self._require_life().process.pid

    @property
    def num_restarts(self) -> int:
        """Restarts of the last minutes."""
        return self._restarts.used(self._clock())

    async def start(self) -> None:
        """Spawn the engine and send it the plan; `wait_ready` tells when it can serve."""
        self.state = "loading"
        self._life = self._new_life()
        await self._life.start(self._receive)
        self._keeping = asyncio.create_task(self._keep(self._life))

    async def wait_ready(self) -> None:
        """Return once the engine is ready; raises `EngineDead`, or `Draining` if it was stopped before."""
        await self._settled.wait()
        self.require_ready()

    async def wait_ended(self) -> None:
        """Return once the engine is gone for good, stopped or dead."""
        await self._ended.wait()

    async def wait_closing(self) -> None:
        """Return once no request will be taken any more: it drains, is stopped or dead."""
        await self._closing.wait()

    def require_ready(self) -> None:
        """Raise what a client is told while the engine takes no requests."""
        match self.state:
            case "ready":
                return
            case "loading":
                raise ModelLoading(f"the model is loading: {self.progress.phase}")
            case "restarting":
                told = f"{self.trouble}; it is being restarted, try again soon"
                raise EngineRestarting(told, retry_after_s=self._start_s)
            case "dead":
                assert self.death is not None
                raise EngineDead(f"the engine is dead: {self.death.cause}")
            case _:
                raise Draining("the server is shutting down")

    def take_id(self) -> int:
        """A number no other request of this server has."""
        self._next_id += 1
        return self._next_id - 1

    def open_session(self) -> Session:
        """A mailbox for one HTTP request."""
        return Session(self._submit, self._abort)

    async def dump(self) -> Report:
        """What the engine does now; it goes on. Who asks meanwhile gets the same: each look takes a second."""
        if self.state == "stopped":
            raise Draining("the server is shutting down")
        if self._life is None or not self._life.started:
            raise EngineRestarting("the engine's process is just being started")
        return await self._dumps.result()

    def drain(self) -> None:
        """Take no new requests; those here run to their end."""
        if self.state == "ready":
            self.state = "draining"
            self._closing.set()

    async def stop(self, *, grace_s: float) -> None:
        """End the engine: ask, wait that long, kill; then give its memory back."""
        self._stop_serving()
        if self._life is not None and not await self._life.leave(grace_s):
            self._log.warning("the engine does not leave, killing it")
            self._life.kill()
        if self._keeping is not None:
            await self._keeping
        await self._dumps.cancel()  # it reads what is closed now
        self._segments.close()
        self._segments = Segments(descriptors={})
        self._control.close()

    def leave(self) -> None:
        """End the engine at once, whatever it does; `stop` still has to be called."""
        self._stop_serving()
        if self._life is not None:
            self._life.kill()

    def _stop_serving(self) -> None:
        self._stopping.set()
        if self.state != "dead":
            self.state = "stopped"
            self._settled.set()
            self._closing.set()

    def _new_life(self) -> EngineLife:
        self._frames = Frames(msgspec.msgpack.Decoder(Up))
        self._condemned = False
        return EngineLife(
            self._spec, self._segments, self._control, log=self._log, clock=self._clock
        )

    def _require_life(self) -> EngineLife:
        if self._life is None:
            raise ModelLoading("the engine has not been started yet")
        return self._life

    def _submit(self, session: Session, add: Add) -> None:
        self.require_ready()
        self.held.hold(session, add)
        self._require_life().send(add)

    def _abort(self, request_id: int) -> None:
        self.held.leave(request_id)
        self._require_life().send(Abort(request_id=request_id))

    async def _keep(self, life: EngineLife) -> None:
        """One engine after another, until it is stopped or dead."""
        try:
            while await self._outlive(life) and (following := await self._follow()):
                life = following
        except Exception as error:
            # The last handler of this task: whoever waits must hear of our bug.
            self._log.error("the engine could not be kept", exc_info=error)
            self.death = died_of_our_bug(error)
            life.kill()
        if self.state != "stopped":
            self.state = "dead"
        self._fail_all()
        self._settled.set()
        self._closing.set()
        self._ended.set()

    async def _outlive(self, life: EngineLife) -> bool:
        """See one engine to its end; whether another one is to follow."""
        ending = await life.until_end(asked=lambda: len(self.held) > 0)
        self._condemned = True
        if self.state == "stopped":
            await life.bury()
            return False
        then = self._decide(ending, was_ready=life.ready_at is not None)
        requests = Requests(running=self.held.num_running, waiting=self.held.num_waiting)
        self._fail_all()
        if then.delay_s is not None:  # a death is told once, by whoever waits for the end
            self._log.error("%s", ending.cause)
        if ending.exit_code == ENGINE_DIED:
            await self._keep_report(ending, then.outcome, requests)
        await life.bury()
        self.stats = None
        if then.delay_s is None:
            if life.ready_at is not None or self.num_restarts:
                self._log.error("%s", then.outcome)
            return False
        return await self._wait_for_restart(then.outcome, then.delay_s)

    async def _follow(self) -> EngineLife | None:
        """The next engine, started; None if it cannot be started, or is not wanted any more."""
        while True:
            life = self._life = self._new_life()
            try:
                await life.start(self._receive)
            except OSError as error:
                # A full table of descriptors or processes may have room a little later.
                cause = f"the next engine could not be started: {error.strerror or error}"
                self._log.error("%s", cause)
                ending = died(cause, hint="`ulimit -a` tells what is short")
                then = self._decide(ending, was_ready=False)
                if then.delay_s is None:
                    self._log.error("%s", then.outcome)
                    return None
                if not await self._wait_for_restart(then.outcome, then.delay_s):
                    return None
            else:
                return life

    def _decide(self, ending: Ending, *, was_ready: bool) -> Aftermath:
        then = decide(
            ending,
            was_ready=was_ready,
            state=self.state,
            restarts=self._restarts,
            now=self._clock(),
        )
        self.death = then.death
        self.trouble = ending.cause
        self.state = "dead" if then.delay_s is None else "restarting"
        return then

    async def _wait_for_restart(self, outcome: str, seconds: float) -> bool:
        """Whether it is still wanted after that time."""
        if not self._stopping.is_set():
            self._log.warning("%s, in %g s", outcome, seconds)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()
        return not self._stopping.is_set()

    async def _keep_report(self, ending: Ending, outcome: str, requests: Requests) -> None:
        if self._spec.reports is None:
            return
        try:
            report = await self._report(ending.kind, ending.cause, requests=requests)
            report = msgspec.structs.replace(report, outcome=outcome)
            async with asyncio.timeout(WRITE_S):  # a disk that hangs must not keep the next engine
                place = await asyncio.to_thread(
                    write_report, self._spec.reports, report, self._spec.plan_json
                )
        except OSError as error:  # a missed timeout is one, too
            self._log.error("the report could not be written: %s", error or "the disk hangs")
        except Exception as error:  # the next engine is worth more than a bug of ours in a report
            self._log.error("the report could not be made", exc_info=error)
        else:
            self._log.error("report: %s", place)

    async def _report(self, kind: str, cause: str, *, requests: Requests | None = None) -> Report:
        held = Requests(running=self.held.num_running, waiting=self.held.num_waiting)
        return await self._require_life().report(
            kind,
            cause,
            state=self.state,
            requests=held if requests is None else requests,
            stats=self.stats,
            log=self._log_lines(),
        )

    def _fail_all(self) -> None:
        """Every request hears that it ends."""
        failed = self.held.fail_all(
            partial(
                failure,
                state=self.state,
                trouble=self.trouble,
                death=self.death,
                start_s=self._start_s,
            )
        )
        if failed and self.state != "stopped":
            self._log.error("%d requests end with the engine", failed)

    def _receive(self, data: bytes) -> bool:
        """Handle what the engine wrote; False, with the cause noted, if it cannot be handled."""
        if self._condemned:
            return True
        try:
            messages = self._frames.feed(data)
        except (ValueError, msgspec.MsgspecError) as error:
            cause = f"the engine sent what is no message: {error}"
            hint = "engine and server are of different versions"
            self._require_life().note(died(cause, hint=hint))
            return False
        try:
            for message in messages:
                self._dispatch(message)
        except Exception as error:
            # The last handler of its messages: whoever waits must hear of our bug.
            self._log.error("a message of the engine could not be handled", exc_info=error)
            self._require_life().note(died_of_our_bug(error))
            return False
        return True

    def _dispatch(self, message: Up) -> None:
        match message:
            case Tokens():
                for request_id, token_id in message.items:
                    self.held.deliver(Token(request_id=request_id, token_id=token_id))
            case Admitted() | Done():
                self.held.deliver(message)
            case Preempted():
                self.held.note_preempted(message.request_id)
            case Stats():
                self.stats = message
            case Log():
                self._log.info("%s", message.line)
            case Progress():
                self._report_progress(message)
            case Ready():
                self._report_ready(message)
            case Fault():
                self._require_life().note_fault(message)

    def _report_progress(self, progress: Progress) -> None:
        if line := self._load_lines.line(progress, self._clock()):
            self._log.info("%s", line)
        self.progress = progress

    def _report_ready(self, ready: Ready) -> None:
        life = self._require_life()
        life.ready_at = self._clock()
        self._start_s = math.ceil(life.ready_at - life.started_at) + 1
        self._log.info("%s", ready_line(ready))
        if self.state in ("loading", "restarting"):
            self.state = "ready"
            self.trouble = None
        self._settled.set()
