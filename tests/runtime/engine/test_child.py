"""The engine as a process: spoken to over its socket, killed with its parent, honest about why it cannot start."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.engine import child as engine_process
from firmtoken.runtime.engine.channel import Channel
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
    Sampling,
    Start,
    Stats,
    Stop,
    Tokens,
    Up,
    frame,
)
from firmtoken.runtime.engine.position import POSITION_BYTES, Position
from firmtoken.runtime.engine.warm_up import NotFinite
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.server.control import Control
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.schema.load import load_profile

PROFILE = Path(__file__).resolve().parents[3] / "profiles" / "tiny-cpu.yaml"
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
COMMAND = (sys.executable, "-m", "firmtoken.runtime.engine.spawned")


def compile_tiny(*overrides: str) -> Plan:
    return compile_profile(load_profile(str(PROFILE), overrides).profile, CARDS)


@dataclass(slots=True)
class Child:
    """One engine process and everything it said."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    said: list[Up] = field(default_factory=list)
    frames: Frames[Up] = field(default_factory=lambda: Frames(msgspec.msgpack.Decoder(Up)))

    def send(self, message: Down) -> None:
        self.socket.sendall(frame(message))

    def until(self, kind: type, count: int = 1) -> list[Up]:
        """Everything said so far, once `count` messages of this kind are among it."""
        while sum(isinstance(message, kind) for message in self.said) < count:
            self.read()
        return self.said

    def read(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise AssertionError(f"gone: {self.said[-3:]}")
        self.said += self.frames.feed(data)

    def of(self, kind: type) -> list[Up]:
        return [message for message in self.said if isinstance(message, kind)]


@pytest.fixture
def spawn() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []
    controls: list[Control] = []

    def make(plan: bytes, segments: dict[str, int] | None = None) -> Child:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        descriptors = segments or {}
        control = Control()
        controls.append(control)
        with theirs:
            process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), *map(str, control.descriptors), str(os.getpid())],
                pass_fds=(theirs.fileno(), *control.descriptors, *descriptors.values()),
                stderr=subprocess.PIPE,
            )
        child = Child(process, ours)
        children.append(child)
        child.send(Start(plan=plan, segments=descriptors, threads=1))
        return child

    yield make
    for child in children:
        child.socket.close()
        child.process.kill()
        child.process.wait()
        assert child.process.stderr is not None
        child.process.stderr.close()
    for control in controls:
        control.close()


def add(request_id: int, num_tokens: int, max_output: int) -> Add:
    return Add(
        request_id=request_id,
        token_ids=[(7 * at + request_id) % 4000 for at in range(num_tokens)],
        max_output=max_output,
        sampling=GREEDY,
        stop_token_ids=[],
    )


def test_a_process_loads_serves_aborts_and_stops(spawn: Callable[..., Child]) -> None:
    plan = compile_tiny()
    segments = {}
    for space in plan.spaces:
        if space.memory == "host":
            segments[space.name] = os.memfd_create(space.name)
            os.ftruncate(segments[space.name], space.bytes)
    child = spawn(plan_to_json(plan), segments)
    child.until(Ready)
    phases = [message.phase for message in child.of(Progress) if isinstance(message, Progress)]
    assert {"weights", "expert slots", "warm-up"} <= set(phases)
    child.send(add(1, 100, 12))
    child.send(add(2, 100, 4000))
    child.until(Done)
    child.send(Abort(request_id=2))
    child.send(Abort(request_id=1))  # too late, and no harm
    said = child.until(Done, 2)
    first, second = child.of(Done)
    assert isinstance(first, Done) and isinstance(second, Done)
    assert (first.request_id, first.reason, first.output_tokens) == (1, "length", 12)
    assert (second.request_id, second.reason) == (2, "abort")
    assert len(child.of(Admitted)) == 2
    # Announced before it runs: the line of the first batch precedes its tokens.
    first_batch = next(i for i, m in enumerate(said) if isinstance(m, Log) and "prefill" in m.line)
    first_tokens = next(i for i, m in enumerate(said) if isinstance(m, Tokens))
    assert first_batch < first_tokens
    while not isinstance(child.said[-1], Stats):  # said when it becomes idle
        child.read()
    assert child.said[-1].running == 0 and child.said[-1].link_bytes["decode"] > 0
    before = cpu_seconds(child.process.pid)
    time.sleep(0.5)
    assert cpu_seconds(child.process.pid) - before < 0.1, "an idle engine spins"
    child.send(add(3, 300, 4000))
    child.until(Admitted, 3)
    child.send(Stop())
    assert child.process.wait(timeout=20) == 0
    child.until(Done, 3)
    assert child.of(Done)[-1] == Done(
        request_id=3,
        reason="abort",
        message="",
        prompt_tokens=300,
        cached_tokens=0,
        output_tokens=child.of(Done)[-1].output_tokens,  # type: ignore[attr-defined]  # whatever it got to
    )
    for descriptor in segments.values():
        os.close(descriptor)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("spoil", "code", "message"),
    [
        (lambda plan: b"{}", 3, "not a plan"),
        (lambda plan: plan_to_json(shrunk(plan)), 3, ""),
        (lambda plan: plan_to_json(elsewhere(plan)), 1, "/nowhere"),
    ],
)
def test_what_cannot_run_says_why_and_ends_with_the_right_code(
    spawn: Callable[..., Child], spoil: Callable[[Plan], bytes], code: int, message: str
) -> None:
    child = spawn(spoil(compile_tiny()))
    child.until(Fault)
    (fault,) = child.of(Fault)
    assert isinstance(fault, Fault)
    assert message in fault.message and fault.hint and fault.code == code
    assert child.process.wait(timeout=20) == code


def shrunk(plan: Plan) -> Plan:
    spaces = tuple(
        replace(space, bytes=space.bytes // 2) if space.name == "kv_pages" else space
        for space in plan.spaces
    )
    return replace(plan, spaces=spaces)


def elsewhere(plan: Plan) -> Plan:
    return replace(plan, model=replace(plan.model, source={"path": "/nowhere"}))


def test_a_broken_checkpoint_is_refused_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*_: object) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(engine_process, "Arena", allocate)
    plan = compile_tiny()
    plan = replace(plan, model=replace(plan.model, source={"path": str(tmp_path)}))
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(LoadError, match="found neither"):
        message = Start(plan=plan_to_json(plan), segments={}, threads=torch.get_num_threads())
        engine_process.start(Channel(theirs), message, time.monotonic, Position())
    torch.set_flush_denormal(False)


def test_a_model_that_computes_no_numbers_is_a_failure_and_no_crash() -> None:
    fault = engine_process.describe(NotFinite("the model's logits are not finite", "look again"))
    assert (fault.code, fault.hint) == (1, "look again")
    assert fault.message == "the model's logits are not finite"


PARENT = f"""
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
shared = [os.memfd_create(name) for name in ("position", "stacks")]
os.ftruncate(shared[0], {POSITION_BYTES})
numbers = [theirs.fileno(), *shared]
child = subprocess.Popen([*{COMMAND!r}, *map(str, numbers), str(os.getpid())], pass_fds=numbers)
holder = subprocess.Popen(["sleep", "60"], pass_fds=(ours.fileno(),))
print(child.pid, holder.pid, flush=True)
time.sleep(60)
"""
"""Starts an engine whose socket somebody else holds open, too."""


@pytest.mark.parametrize("after_s", [0.0, 0.1, 1.0])
def test_it_dies_with_its_parent_though_its_socket_stays_open(after_s: float) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid, holder = map(int, parent.stdout.readline().split())
    time.sleep(after_s)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    try:
        assert ends(pid, within_s=1), "the child outlived its parent"
    finally:
        for left in (pid, holder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


def test_an_engine_of_another_process_than_its_parent_leaves_before_torch() -> None:
    code = (
        "import os, sys\n"
        "from firmtoken.runtime.engine import spawned\n"
        "sys.argv[1:] = ['3', '4', '5', str(os.getpid())]\n"
        "try:\n    spawned.main()\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "False"]


BEFORE_TORCH = f"""
import importlib, os, socket, sys, types
from firmtoken.runtime.engine import spawned
from firmtoken.runtime.engine.messages import Start, frame
def run(channel, first, position, taking):
    for thread in taking:
        thread.join()
    print(os.fstat(first.segments["bank"]).st_blocks * 512, "torch" in sys.modules)
    return 7
importlib.import_module = lambda name: types.SimpleNamespace(run=run)
files = [os.memfd_create(name) for name in ("position", "stacks", "bank")]
for file in files:
    os.ftruncate(file, {POSITION_BYTES} if file != files[2] else 1 << 20)
ours, theirs = socket.socketpair()
ours.sendall(frame(Start(plan=b"", segments={{"bank": files[2]}}, threads=1)))
sys.argv[1:] = map(str, (theirs.detach(), *files[:2], os.getppid()))
spawned.main()
"""


def test_pages_are_taken_before_torch_is_imported_and_the_engines_code_is_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", BEFORE_TORCH], capture_output=True, text=True)
    assert done.stdout.split() == [str(2**20), "False"], done.stderr
    assert done.returncode == 7


def test_messages_that_were_kept_arrive_in_order_with_the_next() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = Channel(theirs)
        tokens, log = Tokens(items=[(1, 2)]), Log(line="step 1")
        channel.put(tokens)
        with pytest.raises(BlockingIOError):
            ours.recv(65536)
        channel.send(log)
        assert Frames(msgspec.msgpack.Decoder(Up)).feed(ours.recv(65536)) == [tokens, log]


def ends(pid: int, within_s: float) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if not stat.exists() or stat.read_text().rsplit(") ", 1)[1].startswith("Z"):
            return True
        time.sleep(0.05)
    return False
