"""Device memory that a kernel's backend holds from start to end beside its operands: how much, from a plan's numbers.

A card names its backend; kernels of one backend run one after the other on one stream, so they share it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.facts import Batches, ModelFacts, Workspace
from firmtoken.schema.profile import Profile

MIB = 2**20
GDN_CHUNK = 64
"""Rows of a chunk of the gated delta net."""
FLASHINFER_SLACK = 16 * MIB
FLASHINFER_GRAIN = 2 * MIB
"""Both beyond the formula, so that it gives the sizes of prototype.md 2.1: 144 MiB there (RTX 4090, Qwen), 158 MiB
(RTX PRO 6000, MiniMax)."""
RESIDENT_THREADS = {(8, 0): 2048, (9, 0): 2048, (10, 0): 2048, (10, 3): 2048}
"""Capability -> threads that a multiprocessor keeps; 1,536 on the others (CUDA programming guide, technical table)."""
FEWER_THREADS = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a workspace, or a constant of a kernel, may depend on."""

    capability: tuple[int, int]
    sms: int
    q_heads: int
    kv_heads: int
    head_dim: int
    expert_width: int
    recurrent_elements: int
    """State of one linear layer and sequence."""
    requests: int
    tile: int
    """Rows of the largest launch of a mixer."""


def sizes_of(profile: Profile, facts: ModelFacts, batches: Batches) -> Sizes | None:
    """The sizes of a plan for a GPU. The CPU's kernels have their temporaries from the process: `None`."""
    gpu, geometry = profile.hardware.gpu, profile.model.geometry
    if gpu is None:
        return None
    return Sizes(
        capability=gpu.capability,
        sms=gpu.sms,
        q_heads=geometry.num_q_heads,
        kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        expert_width=geometry.moe_intermediate_size,
        recurrent_elements=facts.recurrent_elements,
        requests=batches.max_num_seqs,
        tile=batches.mixer_tile,
    )


def _flashinfer(sizes: Sizes) -> int:
    """Partial results of queries in tiles, for two blocks on each multiprocessor (hardware.md 1.3)."""
    tile = 64 if sizes.head_dim >= 256 else 128
    blocks = -(-2 * sizes.sms // sizes.kv_heads)
    partial = sizes.q_heads * blocks * tile * sizes.head_dim * 4
    return -(-(partial + FLASHINFER_SLACK) // FLASHINFER_GRAIN) * FLASHINFER_GRAIN


def _cublas(sizes: Sizes) -> int:
    """One handle on one stream: what `cublas_setting` asks for."""
    return _cublas_buffers(sizes.capability) * 4 * MIB


def split_kv_parts(sizes: Sizes) -> int:
    """Parts of all sequences together, for each head of keys: two programs for each multiprocessor."""
    return max(sizes.requests, -(-2 * sizes.sms // sizes.kv_heads))


def _split_kv(sizes: Sizes) -> int:
    """A row of each query head for each part of a sequence, with its maximum and its sum, in fp32."""
    return sizes.q_heads * split_kv_parts(sizes) * (sizes.head_dim + 2) * 4


def _gdn_chunks(sizes: Sizes) -> int:
    """The state before each chunk of a tile in bf16: each sequence may end with a chunk that is not full (D6)."""
    return (-(-sizes.tile // GDN_CHUNK) + sizes.requests) * sizes.recurrent_elements * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of workspace."""

    bytes: Callable[[Sizes], int]
    source: str
    """`computed`, or `documented` where the numbers are a vendor's."""
    because: str


BACKENDS: Mapping[str, Backend] = {
    "flashinfer": Backend(
        bytes=_flashinfer,
        source="documented",
        because="partial results of attention for two blocks on each multiprocessor",
    ),
    "cublas": Backend(
        bytes=_cublas, source="documented", because="the vendor's products, one handle, one stream"
    ),
    "split_kv": Backend(
        bytes=_split_kv,
        source="computed",
        because="partial results of sequences that are split over all multiprocessors",
    ),
    "gdn_chunks": Backend(
        bytes=_gdn_chunks,
        source="computed",
        because="the state before each chunk of a tile of linear attention",
    ),
}


def workspace_bytes(backend: str, sizes: Sizes | None) -> int:
    """What kernels of a backend share; nothing for a kernel that names none."""
    return BACKENDS[backend].bytes(sizes) if backend and sizes is not None else 0


def workspaces_of(kernels: Sequence[KernelChoice], sizes: Sizes | None) -> tuple[Workspace, ...]:
    """One for each backend of the kernels, named after it, with the kernels that share it; and their spills."""
    found = []
    for name, backend in BACKENDS.items():
        rows = [row for row in kernels if row.workspace == name]
        if rows:
            shared = ", ".join(dict.fromkeys(f"{row.op}.{row.kernel}" for row in rows))
            found.append(
                Workspace(
                    name=name,
                    bytes=max(row.workspace_bytes for row in rows),
                    source=backend.source,
                    because=f"{backend.because}: {shared}",
                )
            )
    largest = max((row.local_bytes for row in kernels), default=0)
    if largest and sizes is not None:
        found.append(
            Workspace(
                name="spills",
                bytes=spilled_bytes(largest, sizes),
                source="computed",
                because=f"{largest} B of registers that do not fit, for every thread that can be resident",
            )
        )
    return tuple(found)


def spilled_bytes(each: int, sizes: Sizes) -> int:
    """What the driver keeps once a kernel has run whose threads spill `each` bytes (prototype.md 2.4)."""
    return sizes.sms * RESIDENT_THREADS.get(sizes.capability, FEWER_THREADS) * each


def cublas_setting(capability: tuple[int, int]) -> str:
    """`CUBLAS_WORKSPACE_CONFIG`: what makes the line of the ledger true, whatever torch's own default is."""
    return f":4096:{_cublas_buffers(capability)}"


def _cublas_buffers(capability: tuple[int, int]) -> int:
    # Of 4 MiB each: 8 MiB up to sm_89, 32 MiB from sm_90 on (hardware.md 1.3).
    return 8 if capability >= (9, 0) else 2
