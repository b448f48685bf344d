"""The server's end of the engine: spawns it, hands it requests, spreads what it says, and notices its death."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from firmtoken.runtime.engine.messages import (
    Abort,
    Add,
    Admitted,
    Done,
    Down,
    Fault,
    Frames,
    Log,
    Preempted,
    Progress,
    Ready,
    Start,
    Stats,
    Stop,
    Tokens,
    Up,
    frame,
)
from firmtoken.runtime.exit_codes import ENGINE_DIED
from firmtoken.runtime.server.errors import ApiError, Draining, EngineDead, ModelLoading
from firmtoken.runtime.server.process import (
    DRAIN_S,
    ENGINE_COMMAND,
    EngineProcess,
    Segments,
    create_segments,
    spawn,
)
from firmtoken.runtime.server.session import Session, Token

State = Literal["loading", "ready", "draining", "stopped", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What one engine is started with."""

    plan_json: bytes
    segments: Mapping[str, int]
    """Bytes by name."""
    environment: Mapping[str, str]
    """All of the child's environment."""
    threads: int
    command: Sequence[str] = ENGINE_COMMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Why the engine is gone: the first cause."""

    message: str
    hint: str
    exit_code: int


@dataclass(slots=True, kw_only=True)
class _Record:
    """One request the engine holds; kept until its `Done`, also after its client left."""

    session: Session | None
    admitted: bool


class EngineClient:
    """One engine and all requests it holds; used from one event loop."""

    def __init__(
        self, spec: EngineSpec, *, log: logging.Logger, clock: Callable[[], float]
    ) -> None:
        self._spec = spec
        self._log = log
        self._clock = clock
        self._segments = create_segments(spec.segments)
        self._records: dict[int, _Record] = {}
        self._next_id = 1
        self._frames = Frames(msgspec.msgpack.Decoder(Up))
        self._process: EngineProcess | None = None
        self._watch: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = asyncio.Event()
        self._progress_at = 0.0
        self.state: State = "loading"
        self.progress = Progress(phase="starting", done=0, total=0)
        self.stats: Stats | None = None
        self.death: Death | None = None

    @property
    def num_running(self) -> int:
        """Requests that the engine has admitted."""
        return sum(record.admitted for record in self._records.values())

    @property
    def num_waiting(self) -> int:
        """Requests that the engine has not admitted yet."""
        return len(self._records) - self.num_running

    async def start(self) -> None:
        """Spawn the engine and send it the plan; `wait_ready` tells when it can serve."""
        self.state = "loading"
        self._process = await spawn(
            self._spec.command, self._segments, self._spec.environment, self._receive
        )
        self._log.info("engine process %d started", self._process.pid)
        self._send(
            Start(
                plan=self._spec.plan_json,
                segments=dict(self._segments.descriptors),
                threads=self._spec.threads,
            )
        )
        self._watch = asyncio.create_task(self._watch_process(self._process))

    async def wait_ready(self) -> None:
        """Return once the engine is ready; raises `EngineDead`, or `Draining` if it was stopped before."""
        await self._settled.wait()
        self.require_ready()

    async def wait_ended(self) -> None:
        """Return once the engine is gone, stopped or dead."""
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
            case "dead":
                raise self._dead()
            case _:
                raise Draining("the server is shutting down")

    def take_id(self) -> int:
        """A number no other request of this server has."""
        self._next_id += 1
        return self._next_id - 1

    def open_session(self) -> Session:
        """A mailbox for one HTTP request."""
        return Session(self._submit, self._abort)

    def drain(self) -> None:
        """Take no new requests; those here run to their end."""
        if self.state in ("loading", "ready"):
            self.state = "draining"
            self._settled.set()
            self._closing.set()

    async def stop(self, *, grace_s: float) -> None:
        """End the engine: ask, wait that long, kill; then give its memory back."""
        self._stop_serving()
        if self._process is not None:
            self._send(Stop())
            if not await self._process.wait(grace_s):
                self._log.warning("the engine does not leave, killing it")
                self._process.kill()
        if self._watch is not None:
            await self._watch
        self._segments.close()
        self._segments = Segments(descriptors={})

    def leave(self) -> None:
        """End the engine at once, whatever it does; `stop` still has to be called."""
        self._stop_serving()
        if self._process is not None:
            self._process.kill()

    def _stop_serving(self) -> None:
        if self.state != "dead":
            self.state = "stopped"
            self._settled.set()
            self._closing.set()

    def _send(self, message: Down) -> None:
        assert self._process is not None
        self._process.write(frame(message))

    def _submit(self, session: Session, add: Add) -> None:
        self.require_ready()
        self._records[add.request_id] = _Record(session=session, admitted=False)
        self._send(add)

    def _abort(self, request_id: int) -> None:
        # The record stays until `Done`: dropped now, its slot would look free while the engine still holds it.
        self._records[request_id].session = None
        self._send(Abort(request_id=request_id))

    async def _watch_process(self, process: EngineProcess) -> None:
        """Wait until the engine is gone; then every request hears it."""
        lines = asyncio.create_task(self._log_lines(process))
        await process.hung_up()
        if self.state != "stopped":
            # It is gone, has hung up or was not understood: it cannot be spoken to again.
            process.kill()
        await process.wait(DRAIN_S)
        await asyncio.wait((lines,), timeout=DRAIN_S)
        lines.cancel()
        self._bury(process)

    def _receive(self, data: bytes) -> bool:
        """Handle what the engine wrote; False, with the cause noted, if it cannot be handled."""
        try:
            messages = self._frames.feed(data)
        except (ValueError, msgspec.MsgspecError) as error:
            cause = f"the engine sent what is no message: {error}"
            self._note_death(_death(cause, hint="engine and server are of different versions"))
            return False
        try:
            for message in messages:
                self._dispatch(message)
        except (
            Exception
        ) as error:  # the last handler of its messages: whoever waits must hear of our bug
            self._log.error("a message of the engine could not be handled", exc_info=error)
            cause = f"the server failed on a message of the engine: {error!r}"
            self._note_death(_death(cause, hint="the stack is in the log; please report it"))
            return False
        return True

    async def _log_lines(self, process: EngineProcess) -> None:
        async for line in process.lines():
            self._log.info("engine: %s", line)

    def _bury(self, process: EngineProcess) -> None:
        """Tell everyone: pending requests, whoever waits for ready, whoever waits for the end."""
        failure: ApiError
        if self.state == "stopped":
            failure = Draining("the server is shutting down")
        else:
            said = process.last_lines[-1] if process.last_lines else ""
            self._note_death(
                _death(
                    f"the engine process {process.ending()}" + (f": {said}" if said else ""),
                    hint="the lines above are what it said last",
                )
            )
            self.state = "dead"
            failure = self._dead()
            if self._records:
                self._log.error("%d requests end with the engine", len(self._records))
        process.close()
        for record in self._records.values():
            if record.session is not None:
                record.session.fail(failure)
        self._records.clear()
        self._settled.set()
        self._closing.set()
        self._ended.set()

    def _note_death(self, death: Death) -> None:
        # The first cause is kept: what follows is only its echo.
        if self.death is None:
            self.death = death

    def _dead(self) -> EngineDead:
        assert self.death is not None
        return EngineDead(f"the engine is dead: {self.death.message}")

    def _dispatch(self, message: Up) -> None:
        match message:
            case Tokens():
                for request_id, token_id in message.items:
                    self._deliver(Token(request_id=request_id, token_id=token_id))
            case Admitted() | Done():
                self._deliver(message)
            case Preempted():
                self._note_preempted(message.request_id)
            case Stats():
                self.stats = message
            case Log():
                self._log.info("%s", message.line)
            case Progress():
                self._report_progress(message)
            case Ready():
                self._report_ready(message)
            case Fault():
                self._log_fault(message)
                self._note_death(
                    Death(message=message.message, hint=message.hint, exit_code=message.code)
                )

    def _deliver(self, event: Admitted | Token | Done) -> None:
        record = self._records.get(event.request_id)
        if record is None:
            return
        if isinstance(event, Admitted):
            record.admitted = True
        if isinstance(event, Done):
            del self._records[event.request_id]
        if record.session is not None:
            record.session.deliver(event)

    def _log_fault(self, fault: Fault) -> None:
        # A stack helps whoever mends us. The sentence is told once, by whoever waits for the engine's end.
        if fault.code == ENGINE_DIED:
            self._log.error("the engine's stack:\n%s", fault.detail)

    def _note_preempted(self, request_id: int) -> None:
        record = self._records.get(request_id)
        if record is not None:
            record.admitted = False

    def _report_progress(self, progress: Progress) -> None:
        now = self._clock()
        if progress.phase != self.progress.phase or now >= self._progress_at + 1:
            self._progress_at = now
            share = f" {100 * progress.done / progress.total:.0f} %" if progress.total else ""
            self._log.info("loading: %s%s", progress.phase, share)
        self.progress = progress

    def _report_ready(self, ready: Ready) -> None:
        self._log.info(
            "engine ready: loaded in %.1f s, warmed up in %.1f s", ready.load_s, ready.warm_up_s
        )
        if self.state == "loading":
            self.state = "ready"
        self._settled.set()


def _death(message: str, *, hint: str) -> Death:
    return Death(message=message, hint=hint, exit_code=ENGINE_DIED)
