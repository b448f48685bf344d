"""`place_memory`: every ledger line that holds values becomes a space, and every value gets its bytes in one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from firmtoken.compiler.facts import CacheChoice, Laid, ModelFacts, Split, TensorFacts
from firmtoken.compiler.places import Buffer, Space, Weight, WeightPart
from firmtoken.compiler.tensor_bytes import ALIGN, ELEMENT_BYTES, align_up
from firmtoken.compiler.workspaces import WORKSPACE_SPACES

DEVICE_SPACES = (
    "weights",
    "experts.cache",
    "experts.staging",
    "experts.overflow",
    "kv_pages",
    "states",
    "activations",
    "parked_hidden",
    "inputs",
    "tables",
    *WORKSPACE_SPACES,
)
"""Lines with values in them, in this order; the three kinds of expert slots are neighbours: one arena (D8)."""
HOST_SPACES = ("bank", "snapshots", "restart_copy")
PAGE_BYTES = 4096
LARGEST_PINNED_PIECE = 64 * 2**30
"""Much larger ranges are refused on some systems (facts/hardware.md H-64)."""
NEVER_PINNED = "restart_copy"
"""Read by the next engine only, and by then nothing else runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMemory:
    """Spaces, weights and buffers of a plan."""

    spaces: tuple[Space, ...]
    weights: tuple[Weight, ...]
    buffers: tuple[Buffer, ...]


def place_memory(
    facts: ModelFacts,
    cache: CacheChoice,
    laid: Laid,
    split: Split,
    slot_bytes: int,
    *,
    shares_banks: bool,
    pins: bool,
) -> PlacedMemory:
    """Offsets of everything, from the finished split."""
    buffers = (
        *laid.buffers,
        *_expert_buffers(facts, split, slot_bytes),
        *_kv_buffers(facts, cache, split),
        *(_state_buffers(facts, cache, split) if facts.num_linear else ()),
    )
    return PlacedMemory(
        spaces=tuple(_spaces(split, buffers, shared=shares_banks, pins=pins)),
        weights=tuple(_weights(facts)),
        buffers=buffers,
    )


def _spaces(
    split: Split, buffers: Sequence[Buffer], *, shared: bool, pins: bool
) -> Iterator[Space]:
    lines = {line.name: line.bytes for line in split.device.lines}
    layers = {buffer.space: buffer.stride[0] for buffer in buffers if buffer.kind == "host"}
    offset = 0
    for name in DEVICE_SPACES:
        if lines.get(name):
            yield Space(
                name=name,
                memory="device",
                offset=offset,
                bytes=lines[name],
                line=name,
                shared=False,
            )
            offset += lines[name]
    for line in split.host.lines:
        if line.name in HOST_SPACES and line.bytes:
            yield Space(
                name=line.name,
                memory="host",
                offset=0,
                bytes=line.bytes,
                line=line.name,
                shared=shared,
                pinned_piece=(
                    pinned_piece(layers[line.name]) if pins and line.name != NEVER_PINNED else 0
                ),
            )


def pinned_piece(layer_bytes: int) -> int:
    """Whole layers, so that no copy crosses two pieces, and whole pages of memory, which are locked once."""
    unit = layer_bytes * (PAGE_BYTES // ALIGN)
    return max(1, LARGEST_PINNED_PIECE // unit) * unit


def _weights(facts: ModelFacts) -> Iterator[Weight]:
    offset = 0
    for tensor in facts.tensors:
        size = align_up(tensor.bytes)
        yield Weight(
            name=tensor.name,
            axis=tensor.axis,
            space="weights",
            offset=offset,
            stride=size if tensor.axis else 0,
            bytes=tensor.bytes,
            dtype=tensor.dtype,
            shape=tensor.shape,
            sources=tensor.sources,
            parts=_parts(tensor),
            add=tensor.add,
        )
        offset += size * facts.count(tensor.axis)


def _parts(tensor: TensorFacts) -> tuple[WeightPart, ...]:
    return tuple(
        WeightPart(rows=part.shape[0], format=tensor.kept or part.format) for part in tensor.parts
    )


def _expert_buffers(facts: ModelFacts, split: Split, slot_bytes: int) -> Iterator[Buffer]:
    places = []
    first = 0
    for count in split.experts.slots_per_layer:
        places.append((first * slot_bytes, count * slot_bytes))
        first += count
    yield _slots("cache", "experts.cache", ("layer",), tuple(places), "a layer's own range (D8)")
    if split.placement == "resident":
        if any(line.name == "restart_copy" for line in split.host.lines):
            yield _host_experts(
                "restart_copy", facts, slot_bytes, "every expert in the layout of its slot"
            )
        return
    half = split.experts.staging_slots // 2 * slot_bytes
    in_waves = split.experts.waves > 1
    unit = "wave" if in_waves else "layer"
    yield _slots(
        "staged",
        "experts.staging",
        ("layer", "wave") if in_waves else ("layer",),
        (),
        f"two halves: one {unit} computes while the next arrives",
        size=half,
        ring=2,
    )
    yield _slots(
        "overflow",
        "experts.overflow",
        (),
        (),
        "where a decode step's miss goes when its layer is held",
        size=split.experts.overflow_slots * slot_bytes,
    )
    yield _host_experts(
        "bank", facts, slot_bytes, "every expert in the layout of its slot: a fetch is one copy"
    )


def _host_experts(name: str, facts: ModelFacts, slot_bytes: int, because: str) -> Buffer:
    """All experts in host memory, by layer."""
    return Buffer(
        name=name,
        kind="host",
        space=name,
        index=("layer",),
        offset=0,
        bytes=facts.experts_per_layer * slot_bytes,
        stride=(facts.experts_per_layer * slot_bytes,),
        ring=(0,),
        places=(),
        view_of=(),
        dtype="u8",
        shape=(facts.experts_per_layer, slot_bytes),
        because=because,
    )


def _slots(
    name: str,
    space: str,
    index: tuple[str, ...],
    places: tuple[tuple[int, int], ...],
    because: str,
    *,
    size: int = 0,
    ring: int = 0,
) -> Buffer:
    return Buffer(
        name=name,
        kind="activation" if name == "staged" else "persistent",
        space=space,
        index=index,
        offset=0,
        bytes=size or places[0][1],
        stride=(0,) * (len(index) - 1) + (size,) if index else (),
        ring=(0,) * (len(index) - 1) + (ring,) if index else (),
        places=places,
        view_of=(),
        dtype="slot",
        shape=(),
        because=because,
    )


def _kv_buffers(facts: ModelFacts, cache: CacheChoice, split: Split) -> Iterator[Buffer]:
    shape = (2, split.pages, cache.page_size, facts.kv_heads, facts.head_dim)
    size = prod(shape) * cache.kv_bytes_per_element
    yield _persistent(
        "kv", "kv_pages", ("full", "owner"), 0, size, cache.kv_dtype, shape, "pages of this layer"
    )


def _state_buffers(facts: ModelFacts, cache: CacheChoice, split: Split) -> Iterator[Buffer]:
    """The recurrent state is always fp32; the convolution's columns are activations and keep their format."""
    columns = next(value.dtype for value in facts.values if value.name == "hid")
    offset = 0
    for name, dtype, shape in (
        ("conv_state", columns, facts.conv_shape),
        ("recurrent_state", "fp32", facts.recurrent_shape),
    ):
        full = (split.state_slots, *shape)
        size = prod(full) * ELEMENT_BYTES[dtype]
        yield _persistent(
            name, "states", ("linear", "owner"), offset, size, dtype, full, "live and shadow slots"
        )
        offset += size * facts.num_linear
    if split.snapshot_slots:
        row = cache.state_bytes_per_sequence // facts.num_linear
        dtype = "fp32" if columns == "fp32" else "u8"
        size = split.snapshot_slots * row
        yield Buffer(
            name="snaps",
            kind="host",
            space="snapshots",
            index=("linear",),
            offset=0,
            bytes=size,
            stride=(size,),
            ring=(0,),
            places=(),
            view_of=(),
            dtype=dtype,
            shape=(split.snapshot_slots, row // ELEMENT_BYTES[dtype]),
            because="private copies at page boundaries (D4)",
        )


def _persistent(
    name: str,
    space: str,
    index: tuple[str, ...],
    offset: int,
    size: int,
    dtype: str,
    shape: tuple[int, ...],
    because: str,
) -> Buffer:
    return Buffer(
        name=name,
        kind="persistent",
        space=space,
        index=index,
        offset=offset,
        bytes=size,
        stride=(size, 0),
        ring=(0, 0),
        places=(),
        view_of=(),
        dtype=dtype,
        shape=shape,
        because=because,
    )
