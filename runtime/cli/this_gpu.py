"""The GPUs of this machine, as the driver's NVML library tells of them: no torch, no CUDA context (D15)."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from firmtoken.compiler.plan import Plan

MIB, GIB = 2**20, 2**30
ROOM_BYTES = 64 * MIB
"""Added to what others hold, in a hint: they may take a little more by the time it is followed."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
PACKAGE = "pynvml"
"""Of the distribution `nvidia-ml-py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that has memory of a GPU."""

    pid: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    """One GPU, now."""

    index: int
    name: str
    uuid: str
    capability: str
    total: int
    free: int
    holders: tuple[Holder, ...]


class NoNvml(Exception):
    """The driver cannot be asked; the text says why, `hint` what mends it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def find_gpus() -> tuple[FoundGpu, ...]:
    """All that the driver shows, in its order; raises `NoNvml`."""
    try:
        nvml = importlib.import_module(PACKAGE)
    except ImportError as error:
        raise NoNvml(
            "the Python package `nvidia-ml-py`, which asks the driver about GPUs, is not installed",
            'install what a GPU needs: `pip install "firmtoken[gpu]"`',
        ) from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoNvml(
            f"the NVIDIA driver does not answer: {error}",
            "load the driver (`nvidia-smi` must work here), or try `ft run tiny-cpu`",
        ) from error
    try:
        return tuple(_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    finally:
        nvml.nvmlShutdown()


def choose_gpu(gpus: tuple[FoundGpu, ...], wanted: str) -> FoundGpu | None:
    """The plan's device (`auto`, an index or a UUID) among them; `auto` is the one with the most free memory."""
    if wanted == "auto":
        return max(gpus, key=lambda gpu: gpu.free, default=None)
    return next((gpu for gpu in gpus if wanted in (str(gpu.index), gpu.uuid)), None)


def engine_environment(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes the engine see the GPU that was chosen and checked, where there are several; raises `NoNvml`.

    A person's own CUDA_VISIBLE_DEVICES (D17) stands where the profile says `auto`.
    """
    wanted = plan.device.index
    if plan.device.kind != "cuda" or (wanted == "auto" and VISIBLE in environ):
        return {}
    gpus = find_gpus()
    gpu = choose_gpu(gpus, wanted)
    return {VISIBLE: gpu.uuid} if gpu is not None and len(gpus) > 1 else {}


def differences(plan: Plan, gpu: FoundGpu) -> Iterator[tuple[str, str]]:
    """What keeps this GPU from running the plan: a sentence, and what mends it."""
    gpu_of_plan = plan.hardware["gpu"]
    assert isinstance(gpu_of_plan, dict)
    planned = str(gpu_of_plan["compute_capability"])
    if gpu.capability != planned:
        yield (
            f"the {gpu.name} here has compute capability {gpu.capability}, and the plan"
            f" `{plan.profile.name}` is made for {planned}",
            "choose a profile of this card (`ft profile list`), or plan for it: "
            f"`--set hardware.gpu.compute_capability={gpu.capability}`",
        )
    # What the driver and other programs hold is inside the profile's reserve.
    needed, name = plan.memory.device.total, plan.profile.name
    if needed > gpu.free:
        others = sum(holder.bytes for holder in gpu.holders)
        held = ", ".join(f"process {one.pid} {one.bytes / GIB:.2f} GiB" for one in gpu.holders)
        yield (
            f"the plan `{name}` needs {needed / GIB:.2f} GiB of the {gpu.name}, {gpu.free / GIB:.2f} GiB are free"
            + (f" ({held})" if others else ""),
            "end other programs on it, or plan beside them: "
            f"`--set hardware.gpu.memory={gpu.total // MIB}MiB"
            f" --set hardware.gpu.reserve={(gpu.total - gpu.free + ROOM_BYTES) // MIB}MiB`",
        )


def _describe(nvml: ModuleType, index: int) -> FoundGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    holders = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return FoundGpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        capability=f"{major}.{minor}",
        total=int(memory.total),
        free=int(memory.free),
        # In a container, and under WSL, the driver does not say how much.
        holders=tuple(
            Holder(pid=int(one.pid), bytes=int(one.usedGpuMemory or 0)) for one in holders
        ),
    )


def _text(name: str | bytes) -> str:
    # Older releases of the package answer in bytes.
    return name.decode() if isinstance(name, bytes) else name
