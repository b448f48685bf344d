"""The engine's process, once `spawned` has tied it to its parent: speaks `messages.py` on the socket of its argument.

Idle, it sleeps on the socket. It ends with its parent, with `Stop`, or with a `Fault`, whose code is its exit code.
"""

import contextlib
import mmap
import socket
import sys
import time
import traceback
from collections.abc import Callable

import torch

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import BadPlan, plan_from_json
from firmtoken.compiler.verify import verify
from firmtoken.runtime.engine.channel import Channel
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.failures import EngineBroken
from firmtoken.runtime.engine.launches import NoKernel
from firmtoken.runtime.engine.loading import NoFolder, inventory_of, load_weights
from firmtoken.runtime.engine.messages import (
    Abort,
    Add,
    Down,
    Fault,
    Log,
    Progress,
    Ready,
    Start,
    Stop,
)
from firmtoken.runtime.engine.position import POSITION_BYTES, Position
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.self_check import KernelWrong, check_kernels, summary
from firmtoken.runtime.engine.warm_up import NotFinite, warm_up
from firmtoken.runtime.engine.weights_check import WeightsReadWrong, check_weights
from firmtoken.runtime.exit_codes import DONE, ENGINE_DIED, FAILED, REFUSED
from firmtoken.runtime.memory.arena import Arena, NoMemory
from firmtoken.runtime.weights.errors import LoadError

STATS_EVERY_S = 1.0
PROGRESS_EVERY_S = 0.1

Clock = Callable[[], float]


def main() -> None:
    """The whole life of the process."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    position = Position(mmap.mmap(int(sys.argv[2]), POSITION_BYTES))
    sys.exit(run(channel, time.monotonic, position))


def run(channel: Channel, clock: Clock, position: Position) -> int:
    """Loads, serves, and says why it ends; the exit code."""
    try:
        first = channel.wait()
        if isinstance(first, Start):
            serve(channel, start(channel, first, clock, position), clock)
    except ConnectionError:
        return DONE  # the server is gone: nobody is left to tell
    except (
        Exception
    ) as error:  # the last handler of this process: whatever it was, the server must hear of it
        fault = describe(error)
        with contextlib.suppress(OSError):
            channel.send(fault)
        return fault.code
    return DONE


def start(channel: Channel, message: Start, clock: Clock, position: Position) -> "Server":
    """Everything is checked, allocated, loaded and warm when this returns."""
    begun = clock()
    torch.set_num_threads(message.threads)
    # States that decay towards zero reach denormals, on which a CPU is many times slower.
    torch.set_flush_denormal(True)
    plan = plan_from_json(message.plan)
    verify(plan, allow_faults=message.test_faults)
    start_s = plan.schedule.deadlines.start_s
    position.least_ns = int(start_s * 1e9)  # all is done for the first time
    position.due(start_s)
    inventory = inventory_of(plan)
    arena = Arena(plan.spaces, message.segments, plan.device.kind)
    interpreter = Interpreter(plan, arena, position, timed=message.timed)
    loaded = load_weights(
        plan, interpreter, inventory, Reporter(channel, clock, position, start_s), message.segments
    )
    loaded_at = clock()
    if plan.device.kind == "cuda":
        channel.send(Progress(phase="self-check", done=0, total=0))
        found = check_kernels(plan, interpreter, lambda: position.due(start_s))
        channel.put(Log(line=f"{summary(found)}; {clock() - loaded_at:.1f} s"))
    if message.known_text is not None:
        channel.send(Progress(phase="perplexity", done=0, total=0))
        line = check_weights(plan, interpreter, inventory, message.known_text)
        channel.put(Log(line=line))
    channel.send(Progress(phase="warm-up", done=0, total=0))
    warm_up(plan, interpreter)
    position.least_ns = 0
    server = Server(channel, plan, interpreter, debug=message.debug)
    channel.put(server.engine.stats())
    channel.send(
        Ready(
            load_s=loaded_at - begun,
            warm_up_s=clock() - loaded_at,
            dense_bytes=loaded.dense_bytes,
            expert_bytes=loaded.expert_bytes,
        )
    )
    return server


class Reporter:
    """Progress of the loader: to the watcher each time, to people a few times a second."""

    def __init__(self, channel: Channel, clock: Clock, position: Position, due_s: float) -> None:
        self._channel = channel
        self._clock = clock
        self._position = position
        self._due_s = due_s
        self._phase = ""
        self._said_at = 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        """Says it if it is news."""
        self._position.due(self._due_s)
        now = self._clock()
        if phase != self._phase or done == total or now - self._said_at >= PROGRESS_EVERY_S:
            self._phase, self._said_at = phase, now
            self._channel.send(Progress(phase=phase, done=done, total=total))


class Server:
    """An engine and its messages."""

    def __init__(
        self, channel: Channel, plan: Plan, interpreter: Interpreter, *, debug: bool
    ) -> None:
        self.engine = Engine(
            plan, interpreter, channel.put, self.poll, channel.flush, checked=debug
        )
        self.position = interpreter.position
        self.step_s = plan.schedule.deadlines.decode_s
        """How long may pass between two launches."""
        self.stopping = False
        self._channel = channel

    def poll(self) -> None:
        """Handles what has arrived."""
        for message in self._channel.arrived():
            self.handle(message)

    def handle(self, message: Down) -> None:
        """One message; `Stop` ends every request."""
        if isinstance(message, Stop):
            self.stopping = True
        elif isinstance(message, Add | Abort) and not self.stopping:
            self.engine.handle(message)
        if self.stopping:
            self.engine.abort_all()


def serve(channel: Channel, server: Server, clock: Clock) -> None:
    """Steps while there is work, sleeps while there is none."""
    said_at = clock()
    while not server.stopping:
        if server.engine.idle:
            channel.send(server.engine.stats())
            server.position.idle()
            server.handle(channel.wait())
        server.position.due(server.step_s)
        server.poll()
        server.engine.step()
        if clock() - said_at >= STATS_EVERY_S:
            said_at = clock()
            channel.send(server.engine.stats())


def describe(error: Exception) -> Fault:
    """What the server is told; the stack is for the log file."""
    detail = "".join(traceback.format_exception(error))
    match error:
        case PlanRefused() | BadPlan():
            code, hint = (
                REFUSED,
                "compile the profile again; a plan file is not meant to be edited",
            )
        case NoKernel():
            code, hint = REFUSED, "choose another kernel under `kernels:`"
        case KernelWrong():
            code, hint = REFUSED, error.hint
        case NoMemory():
            code, hint = REFUSED, "free memory, or ask for less under `hardware`"
        case LoadError() | NoFolder() | NotFinite() | WeightsReadWrong():
            code, hint = FAILED, error.hint
        case EngineBroken():
            code, hint = ENGINE_DIED, "the stack is in the log; please report it"
        case _:
            code, hint = ENGINE_DIED, "the stack is in the log; please report it"
            return Fault(
                message=f"the engine failed: {error!r}", hint=hint, code=code, detail=detail
            )
    return Fault(message=str(error), hint=hint, code=code, detail=detail)
