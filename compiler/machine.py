"""The machine's numbers in one shape, whether its device is a GPU or the CPU playing one (D9)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.schema.hardware import Cpu, Gpu, Hardware
from firmtoken.schema.profile import Profile

PINNABLE_PERCENT, PINNABLE_PERCENT_ON_WINDOWS = 75, 40
"""Of the host's memory, where a profile does not say. Linux sets no limit, but the rest of the system must keep its
pages; Windows, and so WSL, lets about half be pinned by all programs together (H-60)."""

PEAKS: Mapping[Literal["bf16", "fp32"], tuple[str, str]] = {
    "bf16": (
        "prefill is planned from the arithmetic that it allows",
        "take the dense figure of the data sheet, accumulating in fp32",
    ),
    "fp32": (
        "decode is planned from the instructions that it allows",
        "take the figure of the data sheet without tensor cores",
    ),
}
"""Throughputs that no plan can do without: what is planned from each, and where to find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the planner asks of hardware. Rates are bytes/s or FLOP/s, times seconds."""

    kind: str
    """`cpu` or `cuda`."""
    capability: tuple[int, int]
    """(0, 0) for a CPU."""
    capacity: int
    reserve: int
    """Left to others; never planned with."""
    context_bytes: int
    """The CUDA context and its modules; 0 for a CPU."""
    bandwidth: float
    flops: float
    """Dense peak of the format that prefill multiplies in."""
    instructions: float
    """A second, over all lanes: half of the fp32 peak, since a multiplication with addition counts as two FLOP. A CPU's
    products are counted in FLOP alone."""
    launch_s: float
    copy_rate: float
    """Copy engine, host to device."""
    gather_rate: float
    """Kernels that read host memory in place."""
    host_memory: int
    pinnable: int
    shares_banks: bool
    """Host memory outlives the engine, so that the next one finds it filled (D11)."""

    @property
    def budget(self) -> int:
        """What the plan may use of the device."""
        return self.capacity - self.reserve

    @property
    def memory_field(self) -> str:
        """The profile's field that says how large the device is."""
        return "hardware.gpu.memory" if self.kind == "cuda" else "hardware.cpu.memory"


def describe_machine(hardware: Hardware) -> Machine:
    """The numbers of a hardware profile; the schema has seen to it that one device is given."""
    if hardware.gpu is not None:
        return _with_gpu(hardware, hardware.gpu)
    assert hardware.cpu is not None, "the schema asks for `gpu` or `cpu`"
    return _with_cpu(hardware, hardware.cpu)


def uses_graphs(profile: Profile) -> bool:
    """Whether decode steps are captured as graphs: on a GPU, unless `graphs` is off."""
    return profile.hardware.gpu is not None and profile.graphs == "auto"


def pinnable_bytes(hardware: Hardware) -> int:
    """Host memory that can be locked: as given, or as `auto` assumes."""
    if hardware.host.pinnable != "auto":
        return hardware.host.pinnable
    windows = hardware.software.os in ("wsl", "windows")
    percent = PINNABLE_PERCENT_ON_WINDOWS if windows else PINNABLE_PERCENT
    return hardware.host.memory * percent // 100


def _with_gpu(hardware: Hardware, gpu: Gpu) -> Machine:
    assert hardware.link is not None, "the schema asks for `link` beside `gpu`"
    flops, lanes = gpu.flops.get("bf16"), gpu.flops.get("fp32")
    if flops is None or lanes is None:
        raise PlanError(tuple(_missing(kind) for kind in PEAKS if gpu.flops.get(kind) is None))
    return Machine(
        kind="cuda",
        capability=gpu.capability,
        capacity=gpu.memory,
        reserve=gpu.reserve,
        context_bytes=gpu.context_overhead,
        bandwidth=gpu.bandwidth,
        flops=flops,
        instructions=lanes / 2,
        launch_s=gpu.launch_us * 1e-6,
        copy_rate=hardware.link.h2d,
        gather_rate=hardware.link.gather,
        host_memory=hardware.host.memory,
        pinnable=pinnable_bytes(hardware),
        shares_banks=_shares_banks(hardware),
    )


def _missing(kind: Literal["bf16", "fp32"]) -> Refusal:
    planned, hint = PEAKS[kind]
    return Refusal(
        field="hardware.gpu.flops",
        message=f"`{kind}` is missing: {planned}",
        hint=hint,
        code="contradiction",
    )


def _with_cpu(hardware: Hardware, cpu: Cpu) -> Machine:
    link = hardware.link
    return Machine(
        kind="cpu",
        capability=(0, 0),
        capacity=cpu.memory,
        reserve=0,
        context_bytes=0,
        bandwidth=cpu.bandwidth,
        flops=cpu.flops,
        instructions=cpu.flops / 2,
        launch_s=cpu.launch_us * 1e-6,
        # Without a link a copy reads and writes the same RAM.
        copy_rate=link.h2d if link is not None else hardware.host.bandwidth / 2,
        gather_rate=link.gather if link is not None else hardware.host.bandwidth / 2,
        host_memory=hardware.host.memory,
        pinnable=hardware.host.memory,
        shares_banks=_shares_banks(hardware),
    )


def _shares_banks(hardware: Hardware) -> bool:
    # A shared mapping cannot be registered for copies under WSL (D11).
    if hardware.host.banks == "auto":
        return hardware.software.os != "wsl"
    return hardware.host.banks == "shared"
