"""The engine's process, once `spawned` has tied it to its parent and torch is imported: speaks `messages.py`.

Idle, it sleeps on the socket. It ends with its parent, with `Stop`, or with a `Fault`, whose code is its exit code.
"""

import contextlib
import gc
import time
import traceback
from collections.abc import Callable, Sequence
from threading import Thread

import msgspec
import torch

from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import BadPlan, plan_from_json
from firmtoken.compiler.verify import verify
from firmtoken.runtime.engine.after_ready import AfterReady
from firmtoken.runtime.engine.channel import Channel
from firmtoken.runtime.engine.compile_ahead import CompileAhead
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.failures import EngineBroken
from firmtoken.runtime.engine.launches import NoKernel
from firmtoken.runtime.engine.loading import inventory_of, load_weights
from firmtoken.runtime.engine.messages import (
    Abort,
    Add,
    Down,
    Fault,
    Log,
    Progress,
    Ready,
    Start,
    Stats,
    Stop,
)
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.self_check import KernelWrong, check_kernels, summary
from firmtoken.runtime.engine.warm_up import captures, warm_up
from firmtoken.runtime.engine.weights_check import check_weights
from firmtoken.runtime.exit_codes import DONE, ENGINE_DIED, FAILED, REFUSED
from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.runtime.memory.arena import Arena, NoMemory
from firmtoken.runtime.memory.device_memory import MoreThanPlanned, compared, open_device

STATS_EVERY_S = 1.0
PROGRESS_EVERY_S = 0.1
OLD_AFTER = 1000
"""Collections of young objects until one of all: programs bound to new lengths stay, and nothing is found among them.

With Python's own 10, two of 30 such prompts waited 150 ms each (2-core VM), and so did every stream beside them.
"""
REPORT_IT = "the stack is in the log; please report it"

Clock = Callable[[], float]


def run(channel: Channel, first: Down, position: Position, taking: Sequence[Thread]) -> int:
    """Loads, serves, and says why it ends; the exit code. `taking`: see `start`."""
    clock = time.monotonic
    try:
        if isinstance(first, Start):
            serve(channel, start(channel, first, clock, position, taking), clock)
    except ConnectionError:
        return DONE  # the server is gone: nobody is left to tell
    except Exception as error:
        # The last handler of this process: whatever it was, the server must hear of it.
        fault = describe(error)
        with contextlib.suppress(OSError):
            channel.send(fault)
        return fault.code
    return DONE


def start(
    channel: Channel,
    message: Start,
    clock: Clock,
    position: Position,
    taking: Sequence[Thread] = (),
) -> "Server":
    """Everything is checked, allocated, loaded and warm when this returns.

    `taking`: threads that end when the pages of the segments are there.
    """
    begun = clock()
    torch.set_num_threads(message.threads)
    # States that decay towards zero reach denormals, on which a CPU is many times slower.
    torch.set_flush_denormal(True)
    plan = plan_from_json(message.plan)
    verify(plan, allow_faults=message.test_faults)
    start_s = plan.schedule.deadlines.start_s
    position.least_ns = int(start_s * 1e9)  # all is done for the first time
    position.due(start_s)
    channel.send(Progress(phase="headers of weights", done=0, total=0))
    inventory = inventory_of(plan)
    channel.send(Progress(phase="memory", done=0, total=0))
    for thread in taking:
        thread.join()
    memory = open_device(plan)
    arena = Arena(plan.spaces, message.segments, plan.device.kind)
    interpreter = Interpreter(plan, arena, position, timed=message.timed)
    reporter = Reporter(channel, clock, position, start_s)
    with CompileAhead(plan, interpreter, message.threads) as kernels:
        loaded = load_weights(plan, interpreter, inventory, reporter, message.segments)
        kernels.finish(reporter)
    loaded_at = clock()
    if memory is not None:
        channel.send(Progress(phase="self-check", done=0, total=0))
        found = check_kernels(plan, interpreter, lambda: position.due(start_s))
        channel.put(Log(line=f"{summary(found)}; {clock() - loaded_at:.1f} s"))
    if message.known_text is not None:
        channel.send(Progress(phase="perplexity", done=0, total=0))
        line = check_weights(plan, interpreter, inventory, message.known_text)
        channel.put(Log(line=line))
    channel.send(Progress(phase="warm-up", done=0, total=0))
    warm_up(plan, interpreter)
    gc.collect()  # once, after `spawned` has put it off
    gc.freeze()  # what is left stays: no step shall wait until all of it was looked through
    gc.set_threshold(*gc.get_threshold()[:2], OLD_AFTER)
    gc.enable()
    if memory is not None:
        torch.cuda.empty_cache()  # nothing that the start needed beside the arena is kept
        channel.put(Log(line=compared(plan, memory, arena.device.numel())))
    position.least_ns = 0
    server = Server(channel, plan, interpreter, debug=message.debug)
    channel.put(server.stats())
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
            plan,
            interpreter,
            channel.put,
            self.poll,
            channel.flush,
            checked=debug,
            ahead=captures(plan),
        )
        self.position = interpreter.position
        self.step_s = plan.schedule.deadlines.decode_s
        """How long may pass between two launches."""
        self.stopping = False
        self._channel = channel
        self._after_ready = AfterReady() if plan.device.kind == "cuda" else None

    def stats(self) -> Stats:
        """The engine's counters, and what came after ready that should have come before."""
        stats = self.engine.stats()
        if self._after_ready is None:
            return stats
        return msgspec.structs.replace(stats, late=self._after_ready.late())

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
            channel.send(server.stats())
            server.position.idle()
            server.handle(channel.wait())
        server.position.due(server.step_s)
        server.poll()
        server.engine.step()
        if clock() - said_at >= STATS_EVERY_S:
            said_at = clock()
            channel.send(server.stats())


def describe(error: Exception) -> Fault:
    """What the server is told; the stack is for the log file."""
    detail = "".join(traceback.format_exception(error))
    match error:
        case PlanRefused() | BadPlan():
            code = REFUSED
            hint = "compile the profile again; a plan file is not meant to be edited"
        case NoKernel():
            code, hint = REFUSED, "choose another kernel under `kernels:`"
        case KernelWrong() | MoreThanPlanned():
            code, hint = REFUSED, error.hint
        case NoMemory():
            code, hint = REFUSED, "free memory, or ask for less under `hardware`"
        case HintedFault():
            code, hint = FAILED, error.hint
        case EngineBroken():
            code, hint = ENGINE_DIED, REPORT_IT
        case _:
            message = f"the engine failed: {error!r}"
            return Fault(message=message, hint=REPORT_IT, code=ENGINE_DIED, detail=detail)
    return Fault(message=str(error), hint=hint, code=code, detail=detail)
