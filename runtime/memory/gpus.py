"""The GPUs of a machine, as the driver's NVML library tells of them: no torch, no CUDA context."""

import importlib
from dataclasses import dataclass
from types import ModuleType

from firmtoken.runtime.hinted_fault import HintedFault

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
    driver: str
    """Version of the driver that is loaded: `580.159.04`."""
    total: int
    free: int
    holders: tuple[Holder, ...]


class NoNvml(HintedFault):
    """The driver cannot be asked; the text says why."""


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
        try:
            return tuple(_describe(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise NoNvml(
            f"the NVIDIA driver does not answer: {error}",
            "load the driver (`nvidia-smi` must work here), or try `ft run tiny-cpu`",
        ) from error


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
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
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
