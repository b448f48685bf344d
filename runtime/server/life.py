"""`EngineLife`: one engine's process from its start to its end, and why it ended."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firmtoken import __version__
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.messages import (
    Down,
    Fault,
    KnownText,
    Ready,
    Start,
    Stats,
    Stop,
    frame,
)
from firmtoken.runtime.exit_codes import ENGINE_DIED
from firmtoken.runtime.server.control import Control
from firmtoken.runtime.server.foreign_variables import foreign_variables
from firmtoken.runtime.server.inspection import (
    NoPlan,
    describe_position,
    describe_steps,
    plan_of,
    stream_threads,
    threads_of,
)
from firmtoken.runtime.server.process import (
    DRAIN_S,
    ENGINE_COMMAND,
    EngineProcess,
    Segments,
    spawn,
)
from firmtoken.runtime.server.report import PositionReport, Report, Requests, ThreadReport, now_text
from firmtoken.runtime.server.restarts import MOST
from firmtoken.runtime.server.watchdog import TICK_S, Missed, Watchdog

KILL_S = 10.0
"""How long a killed process may take to be gone: the kernel first gives back what it had pinned."""

AFTER_A_STACK = "Extension modules:"
"""How faulthandler ends what it writes at a fatal signal: a list of what is loaded, which is no cause."""

SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "if nobody killed it, the kernel did for want of memory: `dmesg` tells, "
    "and `hardware.host.memory` is what the plan believes there is",
    signal.SIGBUS: "a file that it had mapped could not be read: a disk that failed, or a checkpoint "
    "that was cut while it was read",
    signal.SIGSEGV: "a fault in native code: its stack is in the lines above; please report it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What one engine is started with, and what its server does when it ends."""

    plan_json: bytes
    segments: Mapping[str, int]
    """Bytes by name."""
    environment: Mapping[str, str]
    """All of the child's environment."""
    threads: int
    start_s: float
    """Before ready: the longest time without a sign of progress."""
    answer_s: float
    """The longest time that an engine which holds requests may begin nothing."""
    command: Sequence[str] = ENGINE_COMMAND
    most_restarts: int = MOST
    debug: bool = False
    test_faults: bool = False
    reports: Path | None = None
    """Where reports are written; None: nowhere."""
    known_text: KnownText | None = None
    """What shows that weights are read right; None: nobody asks."""
    timed: bool = False
    """Let the device measure its decode steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why an engine is gone, or has to go."""

    kind: str
    """`stall` or `death`."""
    cause: str
    hint: str
    exit_code: int


def died(cause: str, *, hint: str) -> Ending:
    """An end that is the engine's own doing."""
    return Ending(kind="death", cause=cause, hint=hint, exit_code=ENGINE_DIED)


def died_of_our_bug(error: Exception) -> Ending:
    """An end that is the server's doing."""
    cause = f"the server failed on a message of the engine: {error!r}"
    return died(cause, hint="the stack is in the log; please report it")


def ready_line(ready: Ready) -> str:
    """For the log."""
    return (
        f"engine ready: loaded in {ready.load_s:.1f} s, warmed up in {ready.warm_up_s:.1f} s; "
        f"read {ready.dense_bytes / 1e6:.1f} MB of weights, {ready.expert_bytes / 1e6:.1f} MB of experts"
    )


class EngineLife:
    """Owns the process; `receive` gets what it writes, and says whether it can be listened to any more."""

    def __init__(
        self,
        spec: EngineSpec,
        segments: Segments,
        control: Control,
        *,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._segments = segments
        self._control = control
        self._log = log
        self._clock = clock
        self._process: EngineProcess | None = None
        self._lines: asyncio.Task[None] | None = None
        self._cause: Ending | None = None
        self._missed: Missed | None = None
        self._plan: Plan | NoPlan | None = None
        self._doomed = False
        self.started_at = clock()
        self.ready_at: float | None = None

    @property
    def started(self) -> bool:
        """It has a process, alive or not."""
        return self._process is not None

    @property
    def process(self) -> EngineProcess:
        """Its process, once it was started."""
        assert self._process is not None
        return self._process

    async def start(self, receive: Callable[[bytes], bool]) -> None:
        """Spawn it and send it the plan."""
        self._control.restart(self._spec.start_s)
        self._process = await spawn(
            self._spec.command,
            self._segments,
            self._spec.environment,
            receive,
            shared=self._control.descriptors,
        )
        if self._doomed:
            self._process.kill()
        self._log.info("engine process %d started, it imports torch first", self._process.pid)
        self._lines = asyncio.create_task(self._log_lines(self._process))
        self.send(
            Start(
                plan=self._spec.plan_json,
                segments=dict(self._segments.descriptors),
                threads=self._spec.threads,
                debug=self._spec.debug,
                test_faults=self._spec.test_faults,
                known_text=self._spec.known_text,
                timed=self._spec.timed,
            )
        )

    def send(self, message: Down) -> None:
        """Queue a message; nothing is written to a process that is gone."""
        self.process.write(frame(message))

    def note(self, ending: Ending) -> None:
        """Keep why it ends; the first cause is kept, what follows is only its echo."""
        if self._cause is None:
            self._cause = ending

    def note_fault(self, fault: Fault) -> None:
        """It said itself why it cannot go on."""
        # A stack helps whoever mends us. The sentence is told once, by whoever waits for the engine's end.
        if fault.code == ENGINE_DIED:
            self._log.error("the engine's stack:\n%s", fault.detail)
        self.note(Ending(kind="death", cause=fault.message, hint=fault.hint, exit_code=fault.code))

    async def leave(self, grace_s: float) -> bool:
        """Ask it to end; whether it has within that time."""
        if self._process is None:
            self.kill()
            return True
        self.send(Stop())
        return await self._process.wait(grace_s)

    def kill(self) -> None:
        """End it at once, or as soon as it has begun."""
        self._doomed = True
        if self._process is not None:
            self._process.kill()

    async def until_end(self, *, asked: Callable[[], bool]) -> Ending:
        """Return once it is gone, cannot be spoken to any more, or has missed a deadline."""
        hung_up = asyncio.create_task(self.process.hung_up())
        missing = asyncio.create_task(self._miss_a_deadline(asked))
        try:
            await asyncio.wait((hung_up, missing), return_when=asyncio.FIRST_COMPLETED)
            if missing.done() and not hung_up.done():
                self._missed = missing.result()
                self.note(await self._stalled(self._missed))
            else:
                await self._end()
        finally:
            for task in (hung_up, missing):
                task.cancel()
            await asyncio.gather(hung_up, missing, return_exceptions=True)
        assert self._cause is not None
        return self._cause

    async def bury(self) -> None:
        """Kill it if it still runs, and close our ends."""
        process = self.process
        process.kill()
        if not await process.wait(KILL_S):
            self._log.error("engine process %d cannot be killed", process.pid)
        process.close()
        if self._lines is not None:
            self._lines.cancel()

    async def report(
        self,
        kind: str,
        cause: str,
        *,
        state: str,
        requests: Requests,
        stats: Stats | None,
        log: Sequence[str],
    ) -> Report:
        """All that can be known of it now."""
        process = self.process
        stacks = await self._control.stacks(process.ask_for_stacks) if process.alive else ""
        plan = await self._read_plan()
        threads, position = await self._look()
        return Report(
            kind=kind,
            cause=cause,
            at=now_text(),
            version=__version__,
            profile="" if isinstance(plan, NoPlan) else plan.profile.name,
            fingerprint="" if isinstance(plan, NoPlan) else plan.fingerprint,
            engine_pid=process.pid,
            uptime_s=None if self.ready_at is None else round(self._clock() - self.ready_at, 3),
            state=state,
            outcome="goes on",
            position=position,
            requests=requests,
            stats=None if stats is None else msgspec.structs.asdict(stats),
            threads=threads,
            steps=describe_steps(self._control.reader, time.monotonic_ns()),
            environment=foreign_variables(
                self._spec.environment, () if isinstance(plan, NoPlan) else plan.environment
            ),
            log=tuple(log),
            stacks=stacks,
            exit=None if process.alive else process.ending(),
            output=tuple(process.last_lines),
        )

    async def _read_plan(self) -> Plan | NoPlan:
        if self._plan is None:
            self._plan = await asyncio.to_thread(plan_of, self._spec.plan_json)
        return self._plan

    async def _look(self) -> tuple[tuple[ThreadReport, ...], PositionReport]:
        """Its threads, and where it is in its plan."""
        reader, pid, missed = self._control.reader, self.process.pid, self._missed
        plan = await self._read_plan()
        threads = await threads_of(pid, stream_threads(reader, plan, pid))
        position = describe_position(
            reader,
            plan,
            pid=pid,
            waited_s=0.0 if missed is None else missed.waited_s,
            due_s=reader.due_s if missed is None else missed.due_s,
            shares={thread.id: thread.cpu_share for thread in threads},
        )
        return threads, position

    async def _miss_a_deadline(self, asked: Callable[[], bool]) -> Missed:
        watchdog = Watchdog(self._control.reader, self._clock, answer_s=self._spec.answer_s)
        while True:
            await asyncio.sleep(TICK_S)
            missed = watchdog.look(asked=asked())
            if missed is not None:
                return missed

    async def _stalled(self, missed: Missed) -> Ending:
        """A deadline went by: where the engine is then."""
        _, position = await self._look()
        if position.culprit is not None:
            where = f" in {position.culprit}"
        elif missed.silent:
            where = ": it holds requests and begins nothing"
        else:
            where = " outside of any launch" if self.ready_at is not None else " while it started"
        return Ending(
            kind="stall",
            cause=f"the engine stalled{where}; it had {missed.due_s:g} s for it",
            hint="`ft why` shows where; the report has the stacks",
            exit_code=ENGINE_DIED,
        )

    async def _end(self) -> None:
        """It has hung up: it is gone, or was not understood and cannot be spoken to again."""
        process = self.process
        if self._cause is not None or not await process.wait(DRAIN_S):
            process.kill()
        await process.wait(DRAIN_S)
        if self._lines is not None:
            await asyncio.wait((self._lines,), timeout=DRAIN_S)
        said = process.last_lines[-1] if process.last_lines else ""
        if said.startswith(AFTER_A_STACK):
            said = ""
        self.note(
            Ending(
                kind="death",
                cause=f"the engine process {process.ending()}" + (f": {said}" if said else ""),
                hint=SIGNAL_HINTS.get(process.ended_by, "the lines above are what it said last"),
                exit_code=ENGINE_DIED,
            )
        )

    async def _log_lines(self, process: EngineProcess) -> None:
        async for line in process.lines():
            self._log.info("engine: %s", line)
