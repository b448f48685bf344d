"""The model's half of a profile: family, geometry, number formats, and where the checkpoint is."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from firmtoken.schema.section import Section
from firmtoken.schema.units import TOKENS, Quantity

Format = Literal["nvfp4", "fp8", "bf16", "fp32"]

# The upper bounds are an order of magnitude above any model known; they only keep a typing slip
# from becoming a plan of a million layers.
Layers = Annotated[int, Field(ge=1, le=1_000)]
Heads = Annotated[int, Field(ge=1, le=4_096)]
Width = Annotated[int, Field(ge=1, le=1_000_000)]
Experts = Annotated[int, Field(ge=1, le=16_384)]


class LinearGeometry(Section):
    """The linear-attention (gated delta net) layers of a hybrid model."""

    num_key_heads: Heads
    """Query and key heads."""
    num_value_heads: Heads
    """Value heads; a multiple of `num_key_heads`."""
    key_head_dim: Width
    """Width of one query or key head."""
    value_head_dim: Width
    """Width of one value head."""
    conv_kernel: Annotated[int, Field(ge=2, le=64)]
    """Taps of the causal convolution before the recurrence."""


class Geometry(Section):
    """Sizes, as in the checkpoint's `config.json`."""

    hidden_size: Width
    """Width of the residual stream."""
    num_layers: Layers
    """Decoder layers, of all kinds."""
    full_attention_interval: Layers
    """Every so many layers one has full attention, the last of each group; 1: all have."""
    num_q_heads: Heads
    """Query heads of full attention."""
    num_kv_heads: Heads
    """Key and value heads of full attention; divides `num_q_heads`."""
    head_dim: Width
    """Width of one head of full attention."""
    rotary_dim: Width
    """How many of `head_dim` are rotated; even."""
    rope_theta: Annotated[float, Field(gt=0)]
    """Base of the rotary frequencies."""
    linear: LinearGeometry | None = None
    """The linear-attention layers; required when `full_attention_interval` is above 1."""
    num_experts: Experts
    """Routed experts of a layer."""
    num_experts_per_token: Experts
    """Routed experts that a token visits in each layer."""
    moe_intermediate_size: Width
    """Inner width of one routed expert."""
    shared_intermediate_size: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Inner width of the shared expert; 0: there is none."""
    vocab_size: Annotated[int, Field(ge=2, le=16_777_216)]
    """Rows of the embedding and of the output head."""
    max_position_embeddings: Annotated[int, Quantity(unit=TOKENS, least=2, most=2**30)]
    """Positions the model was made for: the largest context."""
    rms_norm_eps: Annotated[float, Field(gt=0, lt=1)]
    """Added under the root of each norm."""


class Quantization(Section):
    """The number format in which the checkpoint stores each part."""

    experts: Format = "bf16"
    """Routed experts."""
    shared_expert: Format = "bf16"
    """The shared expert."""
    lm_head: Format = "bf16"
    """The output head."""
    attention: Format = "bf16"
    """Projections of the full-attention layers."""
    attention_out: Format | None = None
    """Their output projection, where it is stored otherwise than those of queries, keys and values."""
    linear_attention: Format = "bf16"
    """Large projections of the linear-attention layers."""
    embedding: Format = "bf16"
    """The token embedding."""
    router: Format = "bf16"
    """The gate that picks experts."""
    kv_cache: Literal["fp8", "bf16"] | None = None
    """What the checkpoint declares for its KV cache, if anything."""


class PathSource(Section):
    """A checkpoint in a folder."""

    path: Annotated[str, Field(min_length=1)]
    """The folder; relative to the file this is written in. It may lie anywhere and is only read."""


class HubSource(Section):
    """A checkpoint on the hub."""

    hub: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    """`ORG/NAME`."""
    revision: Annotated[
        str,
        Field(
            min_length=1,
            pattern=r"^[A-Za-z0-9_+-][A-Za-z0-9._+-]*(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)*$",
        ),
    ] = "main"
    """A commit, tag or branch. What a branch means can change between two starts; a commit, in 40 digits, cannot."""


class Synthetic(Section):
    """Random weights."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """Equal seeds give equal weights."""
    routes: Literal["q36", "fnx", "q30", "nem"] | None = None
    """Experts by position, with the statistics of a real router: a random one gives a cache nothing to find.

    `null`: what the random router chooses.
    """


class SyntheticSource(Section):
    """A made-up checkpoint of this geometry, for measuring without a download."""

    synthetic: Synthetic
    """How it is made."""


SOURCE_KINDS = ("path", "hub", "synthetic")


def source_kind(source: object) -> str | None:
    """The tag of the union below; in angle brackets, which no field name has."""
    match source:
        case Mapping():
            named = [kind for kind in SOURCE_KINDS if source.get(kind) is not None]
            return f"<{named[0]}>" if len(named) == 1 else None
        case PathSource():
            return "<path>"
        case HubSource():
            return "<hub>"
        case SyntheticSource():
            return "<synthetic>"
    return None


Source = Annotated[
    Annotated[PathSource, Tag("<path>")]
    | Annotated[HubSource, Tag("<hub>")]
    | Annotated[SyntheticSource, Tag("<synthetic>")],
    Discriminator(
        source_kind,
        custom_error_type="source_kind",
        custom_error_message="expected exactly one of `path`, `hub`, `synthetic`",
    ),
]


class Perplexity(Section):
    """How the engine sees, at a checkpoint's first start, that its weights are read right."""

    text: Annotated[str, Field(min_length=1)] = "auto"
    """A file of a few hundred words, relative to the file this is written in; between ⟪ and ⟫ what counts, if not all.

    `auto`: the opening of a well-known book.
    """
    max: Annotated[float, Field(gt=1, le=1_000_000)] = 100.0
    """The largest perplexity of it that is believed: 1 is certainty, the vocabulary's size is knowing nothing."""


class Model(Section):
    """What is served."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """Shown to people and to clients of `/v1/models`."""
    family: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """Which mathematics: a file of compiler/architectures/, named like the checkpoint's `model_type`."""
    geometry: Geometry
    """Its sizes."""
    quantization: Quantization = Quantization()
    """The number format of each part."""
    dialect: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    """How it spells reasoning and tool calls: a file of runtime/dialects/."""
    perplexity: Perplexity = Perplexity()
    """What its first start is measured against."""
    source: Source
    """Where the checkpoint is."""
