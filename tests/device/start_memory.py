"""What a real GPU holds during and after a start of the engine, phase by phase. A plain script, no test of CI.

    PYTHONPATH=.src python tests/device/start_memory.py [--profile NAME] [--set FIELD=VALUE ...] [--bare]

The engine's own `start` in this process, with the plan's environment. Prints JSON lines: for each phase what the device
has given to this process by the driver's word, what of it the allocator has, and the peak of both; each launch of the
self-check after which the device had given more; the local memory of each compiled kernel; all of it once more after
mixed requests. `--bare`: a context and nothing else, by module loading and stack limit.
"""

import argparse
import ctypes
import json
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any  # what is wrapped has signatures of its own

import msgspec
import pynvml
import torch
from triton import knobs

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.engine import child
from firmtoken.runtime.engine.check_operands import Operands
from firmtoken.runtime.engine.messages import Add, Down, Progress, Sampling, Start, Up
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.self_check import Checker
from firmtoken.runtime.engine.warm_up import Client
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.gpus import find_gpus
from firmtoken.schema.load import load_profile

MIB = 2**20
SAMPLE_S = 0.005
TELLING = MIB
BEGUN = time.perf_counter()
PHASES = (
    "ask_spans",
    "ask_extensions",
    "ask_prompts",
    "ask_together",
    "capture_decode",
    "capture_prompts",
)
STACK_LIMIT = 0
"""CU_LIMIT_STACK_SIZE."""
LOCAL_SIZE_BYTES = 3
"""CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES."""


def say(**line: object) -> None:
    print(json.dumps({**line, "at": round(time.perf_counter() - BEGUN, 1)}), flush=True)


def mib(count: float) -> float:
    return round(count / MIB, 1)


class Device:
    """The driver's word on device 0, and a thread that looks for the peak."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._before = self.used()
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def used(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def given(self) -> int:
        """To this process, if nobody else takes or gives."""
        return self.used() - self._before

    def of_process(self) -> int | None:
        for one in pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
            if one.pid == os.getpid():
                return one.usedGpuMemory
        return None

    def tell(self, phase: str) -> None:
        """And begin to look for the next peak."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        given, reserved = self.given(), torch.cuda.memory_reserved()
        say(
            case="phase",
            after=phase,
            given=mib(given),
            process=None if (own := self.of_process()) is None else mib(own),
            peak=mib(max(self.peak, given)),
            reserved=mib(reserved),
            allocated=mib(torch.cuda.memory_allocated()),
            peak_reserved=mib(torch.cuda.max_memory_reserved()),
            outside_allocator=mib(given - reserved),
            device_allocations=stats.get("num_device_alloc"),
            stack=stack_limit(),
        )
        torch.cuda.reset_peak_memory_stats()
        self.peak = 0

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self.given())
            time.sleep(SAMPLE_S)


def cuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def stack_limit() -> int:
    value = ctypes.c_size_t()
    cuda().cuCtxGetLimit(ctypes.byref(value), STACK_LIMIT)
    return value.value


def set_stack_limit(size: int) -> int:
    return int(cuda().cuCtxSetLimit(STACK_LIMIT, ctypes.c_size_t(size)))


class Channel:
    """Takes what the engine says."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._phase = "arena"

    def put(self, message: Up) -> None:
        text = getattr(message, "line", "")
        if text and not text.startswith(("step", "request")):
            say(case="log", line=text)

    def send(self, message: Up) -> None:
        if isinstance(message, Progress) and message.phase != self._phase:
            self._device.tell(self._phase)
            self._phase = message.phase

    def flush(self) -> None:
        """Nothing is kept."""

    def arrived(self) -> list[Down]:
        return []


def told_after(device: Device, owner: type, name: str) -> None:
    """A phase of its own."""
    plain = getattr(owner, name)

    def told(*arguments: Any, **named: Any) -> Any:
        found = plain(*arguments, **named)
        device.tell(f"{name} {' '.join(str(one) for one in arguments[1:])}".strip())
        return found

    setattr(owner, name, told)


def watch_self_check(device: Device) -> None:
    """Says after which parts of a check the device has given more, outside of the allocator."""
    current = {"what": ""}

    def outside() -> int:
        torch.cuda.synchronize()
        return device.given() - torch.cuda.memory_reserved()

    def watched(owner: type, name: str, plain: Callable[..., Any]) -> None:
        def check(*arguments: Any, **named: Any) -> Any:
            if name == "check":
                case, launch = arguments[1:]
                current["what"] = f"{launch.step.step.op} {launch.choice.kernel} {case.rows} rows"
            before = outside()
            found = plain(*arguments, **named)
            grown = outside() - before
            if abs(grown) >= TELLING:
                what = current["what"]
                say(case="grown", part=name, of=what, mib=mib(grown), stack=stack_limit())
            return found

        setattr(owner, name, check)

    for name in ("fill", "host", "read", "clear"):
        watched(Operands, name, getattr(Operands, name))
    watched(Checker, "check", Checker.check)


class Loaded:
    """Triton functions, as they are loaded."""

    def __init__(self) -> None:
        self._functions: list[tuple[int, str]] = []
        knobs.runtime.kernel_load_end_hook.add(self._keep)

    def tell(self) -> None:
        """Those with local memory, of which the driver keeps some for each thread that can be resident."""
        for function, name in self._functions:
            local = ctypes.c_int()
            cuda().cuFuncGetAttribute(
                ctypes.byref(local), LOCAL_SIZE_BYTES, ctypes.c_void_p(function)
            )
            if local.value:
                say(case="local", name=name, local_bytes=local.value)
        say(case="loaded", kernels=len(self._functions))

    def _keep(self, _: Any, function: int, name: str, *others: Any) -> None:
        self._functions.append((function, name))


def traffic(server: child.Server, vocabulary: int, longest: int) -> None:
    """Mixed requests: lengths of all kinds, one to four at once."""
    chance = random.Random(3)
    lengths = [1, 17, 32, 108, 333, 1508, 1912, 2047, 2049, 6008, 8193, 30_000]
    for number in range(40):
        for part in range(number % 4 + 1):
            length = min(chance.choice(lengths) + chance.randrange(3), longest)
            server.engine.handle(
                Add(
                    request_id=10_000 + 10 * number + part,
                    token_ids=[chance.randrange(vocabulary) for _ in range(length)],
                    max_output=8,
                    sampling=Sampling(temperature=1.0, top_p=0.95, top_k=0, min_p=0.0, seed=7),
                    stop_token_ids=[],
                )
            )
        while not server.engine.idle:
            server.engine.step()


def bare() -> None:
    """What a context takes."""
    device = Device()
    torch.zeros(1, device="cuda")
    loading = os.environ.get("CUDA_MODULE_LOADING")
    torch.cuda.synchronize()
    say(case="bare", loading=loading, given=mib(device.given()), stack=stack_limit())
    properties = torch.cuda.get_device_properties(0)
    say(case="gpu", torch=str(properties.uuid), nvml=str(find_gpus()), pid=os.getpid())
    for size in (0, 512, 1024):
        error = set_stack_limit(size)
        torch.cuda.synchronize()
        say(case="bare", asked=size, error=error, stack=stack_limit(), given=mib(device.given()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="tests/device/h200-synthetic.yaml")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--bare", action="store_true")
    parser.add_argument("--stack", type=int, help="bytes a thread, set before all else")
    parser.add_argument("--quick", action="store_true", help="no look at each launch of the check")
    arguments = parser.parse_args()
    if arguments.bare:
        bare()
        return
    plan = compile_profile(load_profile(arguments.profile, arguments.set).profile, CARDS)
    for name, value in plan.environment.items():
        os.environ.setdefault(name, value)
    ledger = plan.memory.device
    say(
        case="plan", budget=mib(ledger.budget), **{row.name: mib(row.bytes) for row in ledger.lines}
    )
    device = Device()
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    if arguments.stack is not None:
        set_stack_limit(arguments.stack)
    device.tell("context")
    for name in PHASES:
        told_after(device, Client, name)
    if not arguments.quick:
        watch_self_check(device)
    loaded = Loaded()
    message = Start(plan=plan_to_json(plan), segments={}, threads=15)
    server = child.start(Channel(device), message, time.monotonic, Position())  # type: ignore[arg-type]
    device.tell("ready")
    loaded.tell()
    longest = plan.context.effective - 16
    traffic(server, int(plan.model.geometry["vocab_size"]), longest)
    device.tell("requests")
    say(case="late", **msgspec.structs.asdict(server.stats().late))


if __name__ == "__main__":
    main()
