"""What this process has of its GPU, by the driver's word, held against the plan before anybody is served.

The arena is exact, and what torch's allocator has beside it is known to the byte. The rest is the context, modules and
graphs: a vendor's, which a plan can only assume.
"""

import ctypes
import os
from dataclasses import dataclass

import torch

from firmtoken.compiler.ledger_lines import CONTEXT_LINE, MARGIN_LINE
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.runtime.memory.arena import NoMemory
from firmtoken.runtime.memory.gpus import FoundGpu, NoNvml, find_gpus
from firmtoken.schema.hardware import MIB

DRIVER = "libcuda.so.1"
STACK_LIMIT = 0
"""CU_LIMIT_STACK_SIZE."""


class MoreThanPlanned(HintedFault):
    """The process holds more of the GPU than the plan may use."""


class NotMeasured(Exception):
    """The driver does not say how much this process holds; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes of one process on its GPU."""

    process: int
    arena: int
    beside: int
    """What the allocator has beside the arena."""
    sure: bool
    """The driver counted this process. Else the device was compared with what it was before the start, in which other
    programs count too."""

    @property
    def rest(self) -> int:
        """Context, modules and graphs."""
        return self.process - self.arena - self.beside


class DeviceMemory:
    """Looks at all GPUs when it is made, which must be before the first CUDA call of this process."""

    def __init__(self) -> None:
        self._why_not = ""
        self._before: dict[str, FoundGpu] = {}
        try:
            self._before = {gpu.uuid: gpu for gpu in find_gpus()}
        except NoNvml as error:
            self._why_not = str(error)

    def held(self, arena_bytes: int) -> Held:
        """Now; raises `NotMeasured`."""
        if self._why_not:
            raise NotMeasured(self._why_not)
        now = self._own()
        own = self._counted(now, arena_bytes)
        return Held(
            process=self._before[now.uuid].free - now.free if own is None else own,
            arena=arena_bytes,
            beside=torch.cuda.memory_reserved() - arena_bytes,
            sure=own is not None,
        )

    def _own(self) -> FoundGpu:
        """The GPU that CUDA gave to this process."""
        try:
            gpus = [gpu for gpu in find_gpus() if gpu.uuid in self._before]
        except NoNvml as error:  # it answered before the start
            raise NotMeasured(str(error)) from error
        if len(gpus) > 1:
            uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
            gpus = [gpu for gpu in gpus if gpu.uuid == uuid]
        if len(gpus) != 1:
            raise NotMeasured("the driver does not show the GPU that CUDA uses")
        return gpus[0]

    def _counted(self, now: FoundGpu, least: int) -> int | None:
        """What the driver counts for this process; None where it does not say.

        In a container processes may have other numbers than inside: then it is the only new one with so much.
        """
        large = [holder for holder in now.holders if holder.bytes >= least]
        known = {holder.pid for holder in self._before[now.uuid].holders}
        own = [holder for holder in large if holder.pid == os.getpid()]
        new = [holder for holder in large if holder.pid not in known]
        for found in (own, new):
            if len(found) == 1:
                return found[0].bytes
        return None


def open_device(plan: Plan) -> DeviceMemory | None:
    """Before the first CUDA call of an engine; nothing for a plan without a GPU."""
    if plan.device.kind != "cuda":
        return None
    memory = DeviceMemory()
    drop_stacks()
    bound_allocator(plan)
    return memory


def drop_stacks() -> None:
    """No thread of the GPU has a stack before a kernel asks for one; raises `NoMemory` where the driver refuses.

    The driver reserves 1,024 B for every thread that can be resident, 264 MiB of an H200, and enlarges them by itself
    at the launch of a kernel that needs more (CUDA Driver API, cuCtxSetLimit). Those of a plan were compiled to need
    none, or the ledger has a line for it.
    """
    torch.cuda.synchronize()  # which makes the context
    error = ctypes.CDLL(DRIVER).cuCtxSetLimit(STACK_LIMIT, ctypes.c_size_t(0))
    if error:
        raise NoMemory(f"the driver keeps memory for stacks of threads: CUDA error {error}")


def bound_allocator(plan: Plan) -> None:
    """What a start allocates beside the arena must fit where graphs and the margin will be: torch refuses more.

    So a GPU with more memory than the plan's shows what one without it would meet.
    """
    ledger = plan.memory.device
    context = next(line.bytes for line in ledger.lines if line.name == CONTEXT_LINE)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((ledger.total - context) / total)


def compared(plan: Plan, memory: DeviceMemory, arena_bytes: int) -> str:
    """A line for the log: planned and measured, part by part. Raises `MoreThanPlanned`.

    Where others' changes count too it is said, and nothing is refused.
    """
    try:
        held = memory.held(arena_bytes)
    except NotMeasured as error:
        return f"device memory is not measured: {error}"
    ledger = plan.memory.device
    lines = {line.name: line.bytes for line in ledger.lines}
    planned = ledger.total - arena_bytes
    told = (
        f"{_mib(held.process)} MiB held, {_mib(ledger.budget)} may be: arena {_mib(held.arena)} as planned,"
        f" {_mib(held.beside)} beside it in the allocator; context, modules and graphs {_mib(held.rest)}"
        f" ({_mib(planned)} planned, {_mib(lines.get(MARGIN_LINE, 0))} of it as a margin)"
    )
    if held.process <= ledger.budget:
        return f"device memory: {told}"
    if not held.sure:
        return f"device memory: {told}; what other programs took since the start is counted, too"
    # What it takes besides, as measured; the plan keeps its margin on top, so the next start has that to spare.
    others = planned - lines[CONTEXT_LINE] - lines.get(MARGIN_LINE, 0)
    context = -(-(held.process - held.arena - others) // MIB)
    raise MoreThanPlanned(
        f"the engine holds more of the GPU than the plan `{plan.profile.name}` may use: {told}",
        f"plan with what this machine takes: `--set hardware.gpu.context_overhead={context}MiB`",
    )


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f}"
