"""What the passes hand to each other before there is a plan: model facts, batch limits, layouts, the split."""

from collections.abc import Mapping
from dataclasses import dataclass

from firmtoken.compiler.ledger import Ledger
from firmtoken.compiler.places import Buffer
from firmtoken.compiler.plan import FrontierRow, PlanWarning, Programs, Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """One tensor of the checkpoint, whole or among those that are joined by rows."""

    name: str
    """In full; the prefix `model.` is logical, `{l}` is the layer."""
    shape: tuple[int, ...]
    """Of the numbers that it stands for, as the checkpoint has them: [out, in], a convolution [C, 1, K]."""
    format: str
    """In which the checkpoint has it."""

    @property
    def source(self) -> str:
        """Its module, or the parameter itself."""
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """One read-only tensor name of a family, before it has a place."""

    name: str
    axis: str
    """`layer`, `linear`, `full` or empty (one tensor)."""
    shape: tuple[int, ...]
    dtype: str
    """As the device keeps it: `fp32`, `bf16`, `fp8` or `nvfp4`."""
    bytes: int
    """One tensor, scales included."""
    parts: tuple[TensorPart, ...]
    """Lie below each other, in this order."""
    kept: str = ""
    """The format of all parts on the device, where it is not the checkpoint's."""
    add: float = 0.0
    read_by_decode: bool = True
    """Whether a decode step reads all of it (the embedding table is not)."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Modules or parameters of the checkpoint, concatenated by rows."""
        return tuple(part.source for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueFacts:
    """One activation of a family by its local name: `width` elements for each row of its unit."""

    name: str
    unit: str
    """`tokens`, `tile`, `pairs` or `sequences`."""
    width: int
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A family's geometry as the planner needs it. Bytes are the device's formats."""

    family: str
    layer_kinds: tuple[str, ...]
    """`linear` or `full`, per layer."""
    hidden_size: int
    vocab_size: int
    max_positions: int
    tensors: tuple[TensorFacts, ...]
    experts_per_layer: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    kv_elements_per_token: int
    """K and V of all full-attention layers."""
    conv_elements: int
    """Convolution state of one linear layer and sequence; 0 without linear layers."""
    recurrent_elements: int
    """Recurrent state of one linear layer and sequence, always fp32."""
    active_parameters: int
    """Parameters that one token multiplies with in the layers (experts: k of them); the head is not among them."""
    attention_flops_per_pair: int
    """FLOP per (token, earlier token) over all full-attention layers: 4 * layers * q_heads * head_dim."""
    values: tuple[ValueFacts, ...] = ()
    conv_shape: tuple[int, ...] = ()
    """[channels, kernel - 1] of one linear layer and sequence."""
    recurrent_shape: tuple[int, ...] = ()
    """[value heads, key dim, value dim] of one linear layer and sequence."""
    gated_attention: bool = False
    """Whether half of the query projection gates the attention's output."""
    kv_heads: int = 0
    head_dim: int = 0
    expert_sources: tuple[str, ...] = ()
    """Checkpoint modules of an expert's gate, up and down; `{l}` layer, `{e}` expert."""

    @property
    def num_layers(self) -> int:
        """All layers."""
        return len(self.layer_kinds)

    @property
    def num_linear(self) -> int:
        """Layers that hold a state instead of KV."""
        return self.layer_kinds.count("linear")

    @property
    def num_full(self) -> int:
        """Layers that hold KV."""
        return self.layer_kinds.count("full")

    @property
    def total_experts(self) -> int:
        """Layers x experts (D8)."""
        return self.num_layers * self.experts_per_layer

    def count(self, axis: str) -> int:
        """How many tensors a name on this axis stands for."""
        counts = {"": 1, "layer": self.num_layers, "linear": self.num_linear, "full": self.num_full}
        return counts[axis]

    @property
    def expert_parameters(self) -> int:
        """Of one expert: gate, up and down."""
        return 3 * self.hidden_size * self.expert_width

    @property
    def dense_bytes(self) -> int:
        """All tensors but the experts."""
        return sum(tensor.bytes * self.count(tensor.axis) for tensor in self.tensors)

    @property
    def decode_dense_bytes(self) -> int:
        """Dense bytes that one decode step reads."""
        read = (tensor for tensor in self.tensors if tensor.read_by_decode)
        return sum(tensor.bytes * self.count(tensor.axis) for tensor in read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Limits of one launch (`bound_batches`)."""

    max_num_seqs: int
    graph_batch_sizes: tuple[int, ...]
    prefill_graph_rows: tuple[int, ...]
    """Rows at which prefill is captured, if all experts are resident; none without graphs."""
    mixer_tile: int
    moe_chunk: int
    columns: int
    """In how many blocks of output columns a chunk's down projection comes (D6)."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChoice:
    """What `choose_cache` decides before sizes are known."""

    type: str
    page_size: int
    kv_dtype: str
    kv_bytes_per_element: int
    state_bytes_per_sequence: int
    """All linear layers, one slot."""
    snapshots: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Programs of one placement with streams and activations placed at their largest legal size."""

    placement: str
    """`resident` or `offload`."""
    programs: Programs
    streams: Streams
    buffers: tuple[Buffer, ...]
    """Activations and program inputs; offsets in the space `activations`, parked states excluded."""
    activation_bytes: int
    """Size of the space `activations`: max over the programs."""
    parked_bytes_per_token: int
    """Hidden states that an open span parks above the arena; 0 where the order is chunk-major."""
    input_bytes: int
    """Size of the space `inputs`: what the host hands over, results, and what lives across a yield."""
    host_input_bytes: int
    """What the host hands over for one step: token ids, positions, page tables, sampling."""
    table_bytes: int
    """Expert tables, recency, miss lists, maps; 0 when resident."""
    launches: int
    """Kernel launches of one decode step."""
    prefill_launches: int
    """Kernel launches of a prompt that is one tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSplit:
    """Slots of each kind (D8)."""

    slots_per_layer: tuple[int, ...]
    staging_slots: int
    overflow_slots: int
    ring: str
    waves: int
    """In how many waves a layer's misses come: 0 where none is ever missing, 1 whole, else an even number."""

    @property
    def layout(self) -> str:
        """The programs for it: a key of `Candidates.laid`."""
        return {"none": "resident", "whole": "offload", "waves": "waves"}[self.ring]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Everything that `split_memory` decides: both ledgers sum up and fit."""

    context: int
    pool: int
    limited_by: str
    context_because: str
    pages: int
    state_slots: int
    snapshot_slots: int
    placement: str
    experts: ExpertSplit
    experts_because: str
    prefill_span: int
    device: Ledger
    host: Ledger
    frontier: tuple[FrontierRow, ...]
    warnings: tuple[PlanWarning, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Device memory that the kernels of one backend share."""

    name: str
    bytes: int
    source: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The layouts that `split_memory` may choose from: `resident`, `offload`, and `waves` where that may pay."""

    laid: Mapping[str, Laid]
    slot_bytes: int
    bank_row_bytes: int
    workspaces: Mapping[str, tuple[Workspace, ...]]
    """By layout: device memory that the chosen kernels hold beside their operands."""
