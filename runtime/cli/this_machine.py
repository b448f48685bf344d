"""What this machine has, as far as a plan needs it, found without loading a GPU library (D15)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firmtoken.compiler.plan import Plan

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """What the plan needs and this machine has not, and what mends it."""

    message: str
    hint: str


def lacks(plan: Plan, *, root: Path = Path("/")) -> Iterator[Lack]:
    """Everything that keeps this machine from running `plan`."""
    if plan.device.kind == "cuda" and not has_nvidia_gpu(root):
        yield Lack(
            message=f"this machine has no NVIDIA GPU, and the plan `{plan.profile.name}` needs one",
            hint="run it where that GPU is and its driver is loaded, or try `ft run tiny-cpu` here",
        )
    for kernel in plan.kernels:
        if kernel.status == "planned":
            yield Lack(
                message=f"the kernel `{kernel.kernel}` of op `{kernel.op}` is planned, not written",
                hint="this version runs CPU profiles only, such as `ft run tiny-cpu`",
            )
            return
    needed, free = _host_bytes(plan), available_bytes(root)
    if needed > free:
        yield Lack(
            message=f"the plan needs {needed / GIB:.2f} GiB of host memory, {free / GIB:.2f} GiB are free",
            hint="end other programs, or lower `serving.context` or `serving.requests`",
        )


def has_nvidia_gpu(root: Path) -> bool:
    """True if a driver shows one: natively, or through WSL's `dxg`."""
    native = root / "proc/driver/nvidia/gpus"
    return (native.is_dir() and any(native.iterdir())) or (root / "dev/dxg").exists()


def available_bytes(root: Path) -> int:
    """Host memory that new processes can have without swapping."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.removesuffix("kB")) * 1024
    raise LookupError("/proc/meminfo has no MemAvailable")


def compute_threads() -> int:
    """`host.threads: auto`: the cores this process may use, less one for the server."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _host_bytes(plan: Plan) -> int:
    """RAM plays both sides on a CPU device (D9)."""
    device = plan.memory.device.total if plan.device.kind == "cpu" else 0
    return device + plan.memory.host.total
