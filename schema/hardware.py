"""The machine's half of a profile: one accelerator (a GPU, or the CPU playing one), its link, its host."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from firmtoken.schema.frozen_map import FrozenMap
from firmtoken.schema.section import Section
from firmtoken.schema.units import BYTES, COUNT, FLOPS, RATE, Quantity, kind_of

MIB = 2**20
TIB = 2**40

# The lower bounds catch the number whose unit was forgotten: `memory: 24`.
Memory = Annotated[int, Quantity(unit=BYTES, least=MIB, most=64 * TIB)]
Share = Annotated[int, Quantity(unit=BYTES, least=0, most=64 * TIB)]
Rate = Annotated[float, Quantity(unit=RATE, least=1e6, most=1e15)]
Throughput = Annotated[float, Quantity(unit=FLOPS, least=1e6, most=1e18)]
Microseconds = Annotated[float, Field(ge=0, le=1e6)]


def read_device(written: object) -> int | str:
    """`auto`, an index or a UUID as `nvidia-smi -L` prints it."""
    if isinstance(written, int) and not isinstance(written, bool) and 0 <= written < 1024:
        return written
    if isinstance(written, str) and (written == "auto" or written.startswith(("GPU-", "MIG-"))):
        return written
    raise PydanticCustomError(
        "device",
        "{message}",
        {
            "message": f"expected a device, found {kind_of(written)}",
            "hint": "write `auto`, an index such as `0`, or a UUID as `nvidia-smi -L` prints it",
        },
    )


class Gpu(Section):
    """A CUDA device."""

    device: Annotated[
        int | str,
        PlainValidator(read_device),
        WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
    ] = "auto"
    """`auto` (the first that fits this description), an index, or a UUID."""
    compute_capability: Annotated[str, Field(pattern=r"^[1-9][0-9]?\.[0-9]$")]
    """In quotes: `"8.9"`."""
    memory: Memory
    """What the CUDA runtime reports as total, before any context."""
    reserve: Share
    """Left to others: 0.25GiB on a headless Linux, 1.25GiB under a desktop, 2GiB on Windows."""
    bandwidth: Rate
    """Of the device's memory."""
    sms: Annotated[int, Field(ge=1, le=4096)]
    """Streaming multiprocessors."""
    shared_memory_per_block: Annotated[int, Quantity(unit=BYTES, least=16 * 1024, most=64 * MIB)]
    """The opt-in limit."""
    l2: Memory
    """Size of the L2 cache."""
    flops: Annotated[
        Mapping[Literal["bf16", "fp8", "fp4", "fp32"], Throughput | None],
        AfterValidator(FrozenMap),
        PlainSerializer(dict),
    ]
    """Dense throughput per number format, accumulating in fp32; `null`: no hardware path."""
    context_overhead: Share
    """What a CUDA context and its modules take."""
    launch_us: Microseconds
    """From one kernel's end to the next one's start within a stream, outside a graph."""

    @property
    def capability(self) -> tuple[int, int]:
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)


class Cpu(Section):
    """The CPU as the device: its memory is an arena of this size in RAM."""

    memory: Memory
    """Capacity of the arena."""
    bandwidth: Rate
    """Of the arena."""
    flops: Throughput
    """In fp32."""
    launch_us: Microseconds
    """Cost of calling one op."""


class Link(Section):
    """Between host memory and the device, measured under load: it does not follow from the card."""

    h2d: Rate
    """Copy engine, pinned host memory to device."""
    gather: Rate
    """Kernels that read host memory in place."""
    d2h: Rate
    """Copy engine, device to pinned host memory."""


class Host(Section):
    """The machine around the device."""

    memory: Memory
    """RAM that the server may use."""
    pinnable: Annotated[int | Literal["auto"], Quantity(unit=BYTES, least=0, most=64 * TIB)] = (
        "auto"
    )
    """How much of it can be locked for the device, which copies from nothing else at full speed; `auto` assumes three
    quarters, 40 % under WSL and Windows: measure yours."""
    bandwidth: Rate
    """Of RAM."""
    cores: Annotated[int, Field(ge=1, le=4096)]
    """Physical cores."""
    threads: Annotated[int | Literal["auto"], Quantity(unit=COUNT, least=1, most=4096)] = "auto"
    """Threads of the CPU device; `auto` is cores - 1, filled in by `ft run`."""
    banks: Literal["auto", "shared", "engine"] = "auto"
    """Who holds the expert banks: memory that outlives the engine, or the engine itself."""


class Software(Section):
    """What the target has installed; `ft plan` never reads this machine's packages."""

    os: str | None = None
    """`linux`, `wsl` or `windows`."""
    torch: str | None = None
    """Version of torch."""
    triton: str | None = None
    """Version of Triton."""
    flashinfer: str | None = None
    """Version of flashinfer."""
    cuda: str | None = None
    """Version of the CUDA runtime."""
    nvcc: str | None = None
    """Version of nvcc."""
    driver: str | None = None
    """Version of the NVIDIA driver."""


class Hardware(Section):
    """The machine that the plan is for."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Shown to people."""
    gpu: Gpu | None = None
    """The device, unless `cpu` is."""
    cpu: Cpu | None = None
    """The CPU as the device, unless `gpu` is."""
    link: Link | None = None
    """Between host memory and the device; required with `gpu`."""
    host: Host
    """The machine around the device."""
    software: Software = Software()
    """What is installed there."""
