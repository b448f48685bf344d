"""Device memory that a kernel's backend holds from start to end beside its operands: how much, from a plan's numbers.

A card names its backend; kernels of one backend run one after the other on one stream, so they share it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.facts import Batches, ModelFacts, Workspace
from firmtoken.compiler.tensor_bytes import align_up
from firmtoken.schema.model import LinearGeometry
from firmtoken.schema.profile import Profile

MIB = 2**20
GDN_CHUNK = 64
"""Rows of a chunk of the gated delta net."""
LARGEST_TILE = 128
"""Rows of the largest product of attention."""
LARGEST_PAGE = 64
"""Tokens of a page; smaller ones divide it."""
SAMPLE_CHUNK = 2048
SAMPLE_DIGITS = 16
"""Logits of a chunk, and values of a digit, in `sample/digits.py`."""
WIDE_TOKENS = 32_768
"""Whose keys and values lie in bf16 beside their FP8 pages, where no linear attention lends the space of its own; no
more than a sequence can have."""
SMALLEST_TILE = 16
"""Rows of the smallest tile of an expert's pairs: tensor cores take no fewer with profit."""
PAIR_CHUNK = 256
"""Pairs that one program puts in order; it may be more."""
ARRAY_ALIGN = 16
"""Arrays of a workspace begin at a multiple of it, however many rows they have: another form of a kernel would be
compiled for others, in the midst of serving."""
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
    hidden_size: int
    expert_width: int
    shared_width: int
    experts: int
    vocab: int
    recurrent_elements: int
    """State of one linear layer and sequence."""
    linear: LinearGeometry | None
    """Its heads, if the model has such layers."""
    requests: int
    longest: int
    """Tokens of the longest sequence that may be asked for."""
    tile: int
    """Rows of the largest launch of a mixer."""
    chunk: int
    """Rows of the largest launch of experts."""
    experts_per_token: int


def sizes_of(profile: Profile, facts: ModelFacts, batches: Batches) -> Sizes | None:
    """The sizes of a plan for a GPU. The CPU's kernels have their temporaries from the process: `None`."""
    gpu, geometry = profile.hardware.gpu, profile.model.geometry
    if gpu is None:
        return None
    context = profile.serving.context
    return Sizes(
        capability=gpu.capability,
        sms=gpu.sms,
        q_heads=geometry.num_q_heads,
        kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        hidden_size=geometry.hidden_size,
        expert_width=geometry.moe_intermediate_size,
        shared_width=facts.shared_width,
        experts=geometry.num_experts,
        vocab=facts.vocab_size,
        recurrent_elements=facts.recurrent_elements,
        linear=geometry.linear,
        requests=batches.max_num_seqs,
        longest=geometry.max_position_embeddings if isinstance(context, str) else context,
        tile=batches.mixer_tile,
        chunk=batches.moe_chunk,
        experts_per_token=geometry.num_experts_per_token,
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
    """In bf16 the state before each chunk of a tile, and for each of its rows queries, keys, and what a chunk reads of
    the state and adds to it; a sum of decays for each row and head in fp32.

    A sequence may begin and end within a chunk.
    """
    linear = sizes.linear
    assert linear is not None, "no other model has a kernel with it"
    chunks = -(-sizes.tile // GDN_CHUNK) + 2 * sizes.requests
    keys = 2 * linear.num_key_heads * linear.key_head_dim
    changes = linear.num_value_heads * (linear.key_head_dim + linear.value_head_dim)
    row = (keys + changes) * 2 + linear.num_value_heads * 4
    return chunks * sizes.recurrent_elements * 2 + sizes.tile * row


def _prefill_parts(sizes: Sizes) -> int:
    """Of one tile of attention for each multiprocessor: outputs in fp32, with a maximum and a sum for each row."""
    return sizes.sms * LARGEST_TILE * (sizes.head_dim + 2) * 4


def _wide_token(sizes: Sizes) -> int:
    """Keys and values of a token and layer in bf16."""
    return 2 * sizes.kv_heads * sizes.head_dim * 2


def _mixer_tile(sizes: Sizes) -> int:
    """Of attention, parts and FP8 pages in bf16; of linear attention what lies between its launches. Never both."""
    if sizes.linear is None:
        tokens = align_up(min(WIDE_TOKENS, sizes.longest), LARGEST_PAGE)
        return _prefill_parts(sizes) + tokens * _wide_token(sizes)
    return max(_gdn_chunks(sizes), _prefill_parts(sizes))


def wide_tokens(sizes: Sizes) -> int:
    """Tokens whose keys and values fit behind the parts, in whole pages of any size."""
    space = _mixer_tile(sizes) - _prefill_parts(sizes)
    return space // _wide_token(sizes) // LARGEST_PAGE * LARGEST_PAGE


def _sample(sizes: Sizes) -> int:
    """For each chunk of logits its maximum, where that is, and counts by digit; and four marks a row."""
    chunks = -(-sizes.vocab // SAMPLE_CHUNK)
    peaks = 2 * align_up(sizes.requests * chunks * 4, ARRAY_ALIGN)
    return peaks + sizes.requests * (chunks * 2 * SAMPLE_DIGITS * 8 + 2 * 4 * 8)


def _head(sizes: Sizes) -> int:
    """A row of each sequence in bf16."""
    return sizes.requests * sizes.hidden_size * 2


def _route(sizes: Sizes) -> int:
    """Logits of a decode batch in fp32, and how many programs of a row have arrived."""
    return align_up(sizes.requests * sizes.experts * 4, ARRAY_ALIGN) + sizes.requests * 4


def _shared_expert(sizes: Sizes) -> int:
    """What lies between the two halves of a decode batch in bf16, and each row's share in fp32."""
    return align_up(sizes.requests * sizes.shared_width * 2) + sizes.requests * 4


def most_pair_tiles(pairs: int, experts: int, rows: int) -> int:
    """Tiles of so many rows that pairs can make: each expert, and padded rows, may have one that is not full."""
    return pairs // rows + min(experts + 1, pairs)


def pair_bins(experts: int) -> int:
    """Experts, padded pairs and those beyond the end of a chunk, as a power of two."""
    return 1 << (experts + 1).bit_length()


def _operand_order(sizes: Sizes) -> int:
    """The most that a product with NVFP4 weights and many rows needs: a copy of its rows in bf16 (of a chunk for
    experts, of a tile for a mixer), and what lies between its launches.

    For experts, in int32, the order of pairs, slot and ends of each tile, and two numbers for each expert and chunk of
    pairs; for the shared one `a` in bf16 and each row's share in fp32.
    """
    pairs = sizes.chunk * sizes.experts_per_token
    tiles = most_pair_tiles(pairs, sizes.experts, SMALLEST_TILE)
    hidden = sizes.chunk * sizes.hidden_size * 2
    counts = -(-pairs // PAIR_CHUNK) * pair_bins(sizes.experts)
    experts = hidden + align_up(pairs * 4, ARRAY_ALIGN) + (3 * tiles + 1 + 2 * counts) * 4
    shared = hidden + sizes.chunk * (sizes.shared_width * 2 + 4)
    mixer = sizes.tile * max(sizes.hidden_size, sizes.q_heads * sizes.head_dim) * 2
    return align_up(max(experts, shared, mixer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of workspace."""

    bytes: Callable[[Sizes], int]
    source: str
    """`computed`, or `documented` where the numbers are a vendor's."""
    because: str
    space: bool = True
    """Its bytes are a space of the plan, which a kernel gets as `workspace`; else the library allocates them itself."""


BACKENDS: Mapping[str, Backend] = {
    "flashinfer": Backend(
        bytes=_flashinfer,
        source="documented",
        because="partial results of attention for two blocks on each multiprocessor",
    ),
    "cublas": Backend(
        bytes=_cublas,
        source="documented",
        because="the vendor's products, one handle, one stream",
        space=False,
    ),
    "split_kv": Backend(
        bytes=_split_kv,
        source="computed",
        because="partial results of sequences that are split over all multiprocessors",
    ),
    "sample": Backend(
        bytes=_sample, source="computed", because="what a draw knows of each part of the logits"
    ),
    "head": Backend(
        bytes=_head,
        source="computed",
        because="normed rows, before the product with the output head",
    ),
    "route": Backend(
        bytes=_route, source="computed", because="scores of experts, before the best are taken"
    ),
    "shared_expert": Backend(
        bytes=_shared_expert, source="computed", because="what lies between its two halves"
    ),
    "operand_order": Backend(
        bytes=_operand_order,
        source="computed",
        because="rows as products with NVFP4 weights read them, and what lies between their launches",
    ),
    "mixer_tile": Backend(
        bytes=_mixer_tile,
        source="computed",
        because="between the launches of a tile: states and rows of linear attention, FP8 pages in bf16",
    ),
    "prefill_parts": Backend(
        bytes=_prefill_parts,
        source="computed",
        because="partial results of few rows behind many tokens",
    ),
}


def workspace_bytes(backend: str, sizes: Sizes | None) -> int:
    """What kernels of a backend share; nothing for a kernel that names none."""
    return BACKENDS[backend].bytes(sizes) if backend and sizes is not None else 0


def workspace_line(backend: str) -> str:
    """Its ledger line, and its space if it has one."""
    return f"workspace.{backend}"


WORKSPACE_SPACES = tuple(workspace_line(name) for name, row in BACKENDS.items() if row.space)


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
