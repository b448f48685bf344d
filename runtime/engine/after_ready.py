"""What must not happen once requests are served: allocations on the device, compilations, loads of kernels."""

import importlib
from dataclasses import dataclass
from typing import Any  # Triton is there where a GPU is; its hooks have no types

import torch

from firmtoken.runtime.engine.messages import Late

TRITON_KNOBS = "triton.knobs"


@dataclass(slots=True)
class TritonCounts:
    """Since the hooks were set."""

    compiled: int = 0
    loaded: int = 0

    def watch(self) -> None:
        """Counts from now on, in this process."""
        knobs = importlib.import_module(TRITON_KNOBS)
        knobs.runtime.jit_post_compile_hook = self._compile
        knobs.runtime.kernel_load_end_hook.add(self._load)

    def _compile(self, **_: Any) -> None:
        self.compiled += 1

    def _load(self, *_: Any) -> None:
        self.loaded += 1


class AfterReady:
    """Made when a GPU's engine is ready."""

    def __init__(self) -> None:
        self._triton = TritonCounts()
        self._triton.watch()
        self._before = _allocated()

    def late(self) -> Late:
        """So far."""
        allocations, device_allocations = _allocated()
        return Late(
            allocations=allocations - self._before[0],
            device_allocations=device_allocations - self._before[1],
            compilations=self._triton.compiled,
            module_loads=self._triton.loaded,
        )


def _allocated() -> tuple[int, int]:
    """Allocations ever made, and those that the driver was asked for."""
    stats = torch.cuda.memory_stats_as_nested_dict()
    if not stats:  # nothing was ever allocated
        return 0, 0
    return stats["allocation"]["all"]["allocated"], stats["num_device_alloc"]
