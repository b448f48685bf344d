"""The plan: one frozen value that says everything the runtime will do, with a reason for each choice.

Sizes are integers in bytes, times floats in seconds, lengths integers in tokens (D1). The keys are DESIGN.md 4's.
"""

from dataclasses import dataclass

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.faults import Fault
from firmtoken.compiler.ledger import Memory
from firmtoken.compiler.places import Buffer, Space, Weight
from firmtoken.compiler.program import Program

SCHEMA = "firmtoken.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProfile:
    """Which wish this plan answers."""

    name: str
    description: str
    fingerprint: str
    """sha256 of the resolved profile alone (D12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What else the fingerprint is made of, so that a stale lock can say which part changed."""

    cards: str
    """sha256 of all kernel cards."""
    hazards: str
    """sha256 of `hazards.yaml`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevice:
    """Which device this plan is for; there is one plan per rank."""

    kind: str
    """`cpu` or `cuda`."""
    index: str
    """`auto`, an index or a UUID."""
    rank: int
    survives_errors: bool
    """A kernel that raised leaves it usable; a GPU keeps all but a refused allocation until its process ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanModel:
    """What the runtime needs to know of the model beyond programs and buffers."""

    name: str
    family: str
    dialect: str
    source: dict[str, str]
    """`{path}`, `{hub, revision}` or `{synthetic.seed}`: where the weights are; a path is outside the fingerprint."""
    layer_kinds: tuple[str, ...]
    """`linear` or `full`, per layer."""
    geometry: dict[str, int | float]
    """The profile's geometry, flattened: `linear.num_key_heads` etc."""
    quantization: dict[str, str]
    """The profile's: in which format the checkpoint has each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What one request may hold (D2)."""

    effective: int
    requested: str
    """As asked: a number, `max` or `auto`."""
    model_max: int
    limited_by: str
    """`asked`, `model`, `device_memory` or `host_memory`."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPart:
    """One tensor inside an expert slot."""

    name: str
    """`gate`, `up`, `down`, and for nvfp4 also `gate_scale`, `up_scale`, `down_scale`, `globals`."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Where experts live (D8). Slots are numbered from 0: cache ranges by layer, then staging, then overflow."""

    placement: str
    """`resident` or `offload`."""
    slots: int
    """Copies that decode may hit; staging and overflow excluded."""
    slots_per_layer: tuple[int, ...]
    staging_slots: int
    """Both halves together; 0 when resident."""
    overflow_slots: int
    slot_bytes: int
    format: str
    """`fp32`, `bf16` or `nvfp4`: the MoE card's layout."""
    slot_parts: tuple[SlotPart, ...]
    sources: tuple[str, ...]
    """Checkpoint modules of an expert's gate, up and down; `{l}` layer, `{e}` expert."""
    per_layer: int
    """Experts of a layer."""
    total: int
    resident_fraction: float
    ring: str
    """`none`, `whole` (two halves of whole-layer misses) or `waves`."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Pages, states and snapshots (D2, D4)."""

    type: str
    """`none`, `radix` or `hybrid_radix`."""
    page_size: int
    pages: int
    """Sentinel (page 0) included."""
    tokens: int
    """The pool: what all running requests together may hold."""
    dtype: str
    bytes_per_token: int
    state_slots: int
    """Slot 0 is for padded rows; 0 slots for a model without linear layers."""
    snapshot_slots: int
    state_bytes_per_sequence: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An event that orders two streams."""

    frm: str
    to: str
    event: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Streams and the events between them."""

    layout: str
    """`two` or `single`."""
    names: tuple[str, ...]
    edges: tuple[Edge, ...]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs (D5), and `park`, which copies states of leaving sequences to snapshots."""

    decode: Program
    prefill: Program
    extend: Program
    park: Program | None
    """Absent without linear layers or without a prefix cache."""

    def named(self) -> tuple[tuple[str, Program], ...]:
        """The programs that there are, by name."""
        three = (("decode", self.decode), ("prefill", self.prefill), ("extend", self.extend))
        return three if self.park is None else (*three, ("park", self.park))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """Prompts of fewer new tokens than this run `extend` (D7)."""

    cold: int
    warm: int
    """After a prefix hit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a step counts as stalled (D18)."""

    decode_s: float
    prefill_layer_s: float
    start_s: float
    """Before ready: the longest that loading or a first run may go without a sign of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Limits of batches and spans (D6, D7)."""

    max_num_seqs: int
    mixer_tile: int
    moe_chunk: int
    prefill_span: int
    order: str
    """`layer` (spans) or `chunk` (everything resident)."""
    on_demand_below: OnDemand
    decode_every_units: int
    """A decode step may run at every n-th yield of a prefill."""
    graph_batch_sizes: tuple[int, ...]
    prefill_graph_rows: tuple[int, ...]
    """A prompt of one request and no more rows is padded to the next of these, and its prefill is a graph."""
    deadlines: Deadlines
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who may enter (D3)."""

    max_prompt_tokens: int
    output_reserve: int
    default_output: int
    pages_per_request_rule: str
    queue: int
    """Requests that may wait."""
    queue_tokens: int
    """Prompt tokens that may wait, all requests together."""
    max_preemptions: int
    max_passes: int
    """How often a request that fits may pass a head that waits for pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """One context, its complete ledger's result and predicted speed (D16)."""

    context: int
    pool: int
    kv_dtype: str
    slots: int
    slots_per_layer: int
    staging_slots: int
    resident_fraction: float
    hit_rate: float
    decode_tokens_per_s: float
    decode_tokens_per_s_full: float
    prefill_tokens_per_s: float
    ttft_s: float
    turn_s: float
    free_bytes: int
    chosen: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change, the `--set` that makes it, and what it would buy, found by recompiling."""

    change: str
    set: str
    gain: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerToken:
    """What one decode token moves."""

    device: int
    link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """An agent's conversation alone on the machine: a first prompt, an answer, a turn, an answer (conversation.py)."""

    prompt_tokens: int
    prompt_s: float
    """Until its first token, nothing cached."""
    answer_tokens: int
    """What admission sets aside for an answer."""
    turn_tokens: int
    turn_s: float
    """Until the first token of a turn that finds prompt and answer in the prefix cache, if there is one."""
    at_once: int
    """Conversations of this length that run together; the next waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Predictions; `because` names the model and its constants."""

    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    ttft_floor_s: float
    hit_rate: float
    bytes_per_token: BytesPerToken
    bank_stream_s: float
    """Every missing expert once over the link, what a pass over a prompt pays at least; 0 when all are resident."""
    conversation: Conversation
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """Something the user did not ask for."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A compiled profile."""

    schema: str
    fingerprint: str
    inputs: PlanInputs
    profile: PlanProfile
    hardware: dict[str, object]
    """The resolved hardware facts, as data."""
    model: PlanModel
    device: PlanDevice
    environment: dict[str, str]
    context: Context
    memory: Memory
    experts: Experts
    kv_cache: KvCache
    kernels: tuple[KernelChoice, ...]
    streams: Streams
    weights: tuple[Weight, ...]
    buffers: tuple[Buffer, ...]
    spaces: tuple[Space, ...]
    programs: Programs
    schedule: Schedule
    admission: Admission
    frontier: tuple[FrontierRow, ...]
    advice: tuple[Advice, ...]
    estimates: Estimates
    warnings: tuple[PlanWarning, ...]
    faults: tuple[Fault, ...]
    """What a test lets go wrong; the compiler never puts one here."""
