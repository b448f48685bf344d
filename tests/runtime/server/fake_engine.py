"""A child that speaks the engine's protocol and computes nothing: what it does is said by the plan's bytes.

`Start.plan` is JSON of `Script`. An answer is its own prompt, repeated for ever, unless `script.answer` is set.
"""

import ctypes
import faulthandler
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass

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
    Progress,
    Ready,
    Start,
    Stats,
    Stop,
    Tokens,
    Up,
    frame,
)
from firmtoken.runtime.engine.position import POSITION_BYTES, Position

PR_SET_PDEATHSIG = 1


class Script(msgspec.Struct, kw_only=True):
    """What this engine does."""

    answer: list[int] | None = None
    """Tokens of every answer, then `stop`."""
    step_s: float = 0.0
    load_s: float = 0.0
    slots: int = 4
    """Requests that run at the same time."""
    stall: bool = False
    """Admits and then says nothing, not even to `Stop`."""
    fault_after: int | None = None
    """Steps until a `Fault`."""
    fault_code: int = 3
    die_after: int | None = None
    """Steps until it is gone without a word."""
    fail_load: bool = False
    slow_beside: str | None = None
    """A file: `load_s` counts only while it is there."""
    fail_load_beside: str | None = None
    """A file: loading fails while it is there."""
    due_s: float = 60.0
    """How long a step may take, as the watchdog is told."""
    spin_after: int | None = None
    """Steps until one that never ends."""
    deaf: bool = False
    """Takes requests and begins nothing."""
    once: str | None = None
    """A file: the engine misbehaves only while it is not there, and makes it."""
    journal: str | None = None
    """A file for one line per message received."""


@dataclass
class Sequence:
    add: Add
    sent: int = 0


class FakeEngine:
    def __init__(self, connection: socket.socket, position: Position) -> None:
        self.connection = connection
        self.position = position
        self.frames = Frames(msgspec.msgpack.Decoder(Down))
        self.inbox: deque[Down] = deque()
        self.waiting: deque[Add] = deque()
        self.running: dict[int, Sequence] = {}
        self.script = Script()
        self.steps = 0
        self.leaving = False

    def send(self, message: Up) -> None:
        self.connection.sendall(frame(message))

    def note(self, line: str) -> None:
        if self.script.journal is not None:
            with open(self.script.journal, "a") as journal:  # noqa: PTH123
                journal.write(line + "\n")

    def receive(self, timeout_s: float | None) -> None:
        ready, _, _ = select.select([self.connection], [], [], timeout_s)
        if ready:
            data = self.connection.recv(65536)
            if not data:
                sys.exit(0)
            self.inbox.extend(self.frames.feed(data))

    def start(self) -> None:
        while not self.inbox:
            self.receive(None)
        start = self.inbox.popleft()
        assert isinstance(start, Start)
        self.script = msgspec.json.decode(start.plan, type=Script)
        for name, descriptor in start.segments.items():
            self.note(f"segment {name} {os.fstat(descriptor).st_size}")
        self.send(Progress(phase="reading weights", done=0, total=100))
        fails_now = self.script.fail_load_beside
        if self.script.fail_load or (fails_now is not None and os.path.exists(fails_now)):  # noqa: PTH110
            self.send(Fault(message="weights are broken", hint="again", code=1, detail="a stack"))
            sys.exit(1)
        slow = self.script.slow_beside
        if slow is None or os.path.exists(slow):  # noqa: PTH110
            time.sleep(self.script.load_s)
        self.send(Ready(load_s=0.5, warm_up_s=0.25, dense_bytes=1, expert_bytes=2))
        self.send(Log(line="fake engine is up"))
        self.position.idle()

    def run(self) -> None:
        self.start()
        while not self.leaving:
            busy = self.running or self.waiting
            if not busy:
                self.position.idle()
            self.receive((self.script.step_s if busy else None) if not self.script.stall else None)
            while self.inbox:
                self.handle(self.inbox.popleft())
            if self.script.deaf:
                continue
            self.admit()
            if self.running and not self.script.stall:
                self.step()

    def handle(self, message: Down) -> None:
        match message:
            case Add():
                self.note(f"add {message.request_id} {msgspec.json.encode(message).decode()}")
                self.waiting.append(message)
            case Abort():
                self.note(f"abort {message.request_id}")
                self.abort(message.request_id)
            case Stop():
                self.note("stop")
                if not self.script.stall:
                    for request_id in [*self.running, *(add.request_id for add in self.waiting)]:
                        self.done(request_id, "abort")
                    self.leaving = True

    def abort(self, request_id: int) -> None:
        if request_id in self.running:
            self.done(request_id, "abort")
        for add in list(self.waiting):
            if add.request_id == request_id:
                self.waiting.remove(add)
                self.done(request_id, "abort")

    def admit(self) -> None:
        while self.waiting and len(self.running) < self.script.slots:
            add = self.waiting.popleft()
            self.running[add.request_id] = Sequence(add)
            self.send(
                Admitted(
                    request_id=add.request_id,
                    cached_tokens=len(add.token_ids) // 2,
                    pages=1,
                    waiting=len(self.waiting),
                    resumed=False,
                )
            )

    def misbehaves(self, after: int | None) -> bool:
        if after is None or self.steps <= after:
            return False
        if self.script.once is None:
            return True
        try:
            with open(self.script.once, "x"):  # noqa: PTH123  one call that fails where it is there
                return True
        except FileExistsError:
            return False

    def step(self) -> None:
        self.steps += 1
        self.position.due(self.script.due_s)
        if self.misbehaves(self.script.spin_after):
            while True:
                pass
        if self.misbehaves(self.script.die_after):
            print("the fake engine falls over", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.script.fault_after is not None and self.steps > self.script.fault_after:
            code = self.script.fault_code
            self.send(
                Fault(message="the device is lost", hint="check it", code=code, detail="a stack")
            )
            sys.exit(code)
        items, ended = [], []
        for request_id, sequence in self.running.items():
            token, reason = self.next_token(sequence)
            if token is not None:
                items.append((request_id, token))
            if reason is not None:
                ended.append((request_id, reason))
        self.send(Tokens(items=items))
        for request_id, reason in ended:
            self.done(request_id, reason)

    def next_token(self, sequence: Sequence) -> tuple[int | None, str | None]:
        add = sequence.add
        source = add.token_ids if self.script.answer is None else self.script.answer
        if self.script.answer is not None and sequence.sent >= len(source):
            return None, "stop"
        token = source[sequence.sent % len(source)]
        sequence.sent += 1
        if token in add.stop_token_ids:
            return token, "stop"
        return token, "length" if sequence.sent >= add.max_output else None

    def done(self, request_id: int, reason: str) -> None:
        sequence = self.running.pop(request_id, None)
        # Before it is sent: a test that has heard of the end reads the journal at once.
        self.note(f"done {request_id} {reason}")
        self.send(
            Done(
                request_id=request_id,
                reason=reason,  # type: ignore[arg-type]
                message="",
                prompt_tokens=0 if sequence is None else len(sequence.add.token_ids),
                cached_tokens=0 if sequence is None else len(sequence.add.token_ids) // 2,
                output_tokens=0 if sequence is None else sequence.sent,
            )
        )
        self.send(stats(len(self.running), len(self.waiting), self.steps))


def stats(running: int, waiting: int, steps: int) -> Stats:
    fields = msgspec.structs.fields(Stats)
    zero = dict.fromkeys((field.name for field in fields if field.required), 0)
    return Stats(
        **zero
        | {"running": running, "waiting": waiting, "steps": steps, "pages_free": 100}
        | {"link_bytes": {}}
    )


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1, file=int(sys.argv[3]))
    position = Position(mmap.mmap(int(sys.argv[2]), POSITION_BYTES))
    position.answer()
    FakeEngine(socket.socket(fileno=int(sys.argv[1])), position).run()
