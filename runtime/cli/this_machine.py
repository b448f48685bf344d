"""What this machine has, as far as a plan needs it, found without loading a GPU library (D15)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.this_gpu import choose_gpu, differences
from firmtoken.runtime.memory.gpus import NoNvml, find_gpus

MIB, GIB = 2**20, 2**30


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
    elif plan.device.kind == "cuda":
        yield from _gpu_lacks(plan)
    needed, free = _host_bytes(plan), available_bytes(root)
    if needed > free:
        yield Lack(
            message=f"the plan needs {needed / GIB:.2f} GiB of host memory, {free / GIB:.2f} GiB are free",
            hint=f"end other programs, or {_with_less(plan, free)}",
        )


def _gpu_lacks(plan: Plan) -> Iterator[Lack]:
    try:
        gpus = find_gpus()
    except NoNvml as error:
        yield Lack(message=str(error), hint=error.hint)
        return
    gpu = choose_gpu(gpus, plan.device.index)
    if gpu is None:
        shown = ", ".join(f"{one.index} ({one.name}, {one.uuid})" for one in gpus)
        yield Lack(
            message=f"this machine has no GPU `{plan.device.index}`",
            hint=f"`hardware.gpu.device` may be: {shown or 'none'}",
        )
        return
    for message, hint in differences(plan, gpu):
        yield Lack(message=message, hint=hint)


def _with_less(plan: Plan, free: int) -> str:
    """How to be told what fits. Contexts and requests lie on the device: fewer of them leave the host as it is."""
    if plan.device.kind == "cpu":
        return "plan a smaller arena: `hardware.cpu.memory`"
    return (
        "see what fits beside them: "
        f"`--set hardware.host.memory={free // MIB}MiB --set hardware.host.pinnable=auto`"
    )


def has_nvidia_gpu(root: Path) -> bool:
    """True if a driver shows one: natively, by its devices alone (as in gVisor), or through WSL's `dxg`."""
    native = root / "proc/driver/nvidia/gpus"
    devices = root / "dev"
    return (
        (native.is_dir() and any(native.iterdir()))
        or any(devices.glob("nvidia[0-9]*"))
        or (devices / "dxg").exists()
    )


def available_bytes(root: Path) -> int:
    """Host memory that new processes can have without swapping: the machine's, or what a container leaves."""
    return min((_meminfo_bytes(root), *_cgroup_bytes(root)))


def _meminfo_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.removesuffix("kB")) * 1024
    raise LookupError("/proc/meminfo has no MemAvailable")


def _cgroup_bytes(root: Path) -> Iterator[int]:
    """What each limit above this process leaves; none where there is no limit."""
    top = root / "sys/fs/cgroup"
    own = root / "proc/self/cgroup"
    lines = own.read_text().splitlines() if own.exists() else []
    # Version 2 has one line, `0::/path`; inside a container the path is `/`, or names folders that are not here.
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    for folder in ((top / path), *(top / path).parents):
        limit = folder / "memory.max"
        if (
            folder.is_relative_to(top)
            and limit.exists()
            and (most := limit.read_text().strip()) != "max"
        ):
            used = int((folder / "memory.current").read_text())
            yield max(0, int(most) - used + _reclaimable_bytes(folder))


def _reclaimable_bytes(folder: Path) -> int:
    """File pages that the kernel gives up first; they count as used."""
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, amount = line.partition(" ")
        if name == "inactive_file":
            return int(amount)
    return 0


def compute_threads() -> int:
    """`host.threads: auto`: the cores this process may use, less one for the server."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _host_bytes(plan: Plan) -> int:
    """RAM plays both sides on a CPU device (D9)."""
    device = plan.memory.device.total if plan.device.kind == "cpu" else 0
    return device + plan.memory.host.total
