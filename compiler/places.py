"""Where values and weights live: names to bytes in spaces (D5)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPart:
    """One of the matrices that are joined to a weight row."""

    rows: int
    format: str
    """As the device keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Read-only tensors of one name: one per layer on `axis`, or one (`axis` empty).

    Address of the tensor of ordinal i on the axis: space offset + `offset` + i * `stride`.
    """

    name: str
    axis: str
    """`layer`, `linear`, `full` or empty."""
    space: str
    offset: int
    stride: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    """Module names in the checkpoint, concatenated by rows; `{l}` is the layer. Prefix `model.` is logical."""
    parts: tuple[WeightPart, ...]
    """What each source becomes; `weight_sections.py` says where its bytes lie."""
    add: float
    """Added in fp32 at load (1.0 for zero-centred norm weights)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Where the values of one name live (D5).

    Address of `name[i, ...]`: offset + sum(stride[d] * place(i_d)), place(i) = i % ring[d] where ring[d] > 0, else the
    ordinal of i on axis `index[d]`. `places` overrides that for one index: (offset, bytes) by ordinal.
    """

    name: str
    kind: str
    """`activation`, `persistent`, `view`, `pinned` or `host`."""
    space: str
    index: tuple[str, ...]
    """Axis of each index: `layer`, `linear`, `full`, `chunk`, `wave` or `owner`.

    `owner` separates the open prefill (0) from the running batch (1): same bytes, disjoint pages and slots (A3).
    """
    offset: int
    bytes: int
    stride: tuple[int, ...]
    ring: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    view_of: tuple[str, ...]
    """Names whose change voids this value; their indices are the first of its own."""
    dtype: str
    shape: tuple[int | str, ...]
    """First entry may be a unit of rows: `tokens`, `tile`, `pairs` or `sequences`."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """An arena; exactly one ledger line."""

    name: str
    memory: str
    """`device` or `host`."""
    offset: int
    """From the start of that memory's allocation (host spaces are segments of their own: 0)."""
    bytes: int
    line: str
    shared: bool
    """A segment of the server's: it outlives the engine (D11)."""
    pinned_piece: int = 0
    """Bytes of it that are locked at once for copies to and from a GPU; 0 = none are. No copy crosses two pieces."""
