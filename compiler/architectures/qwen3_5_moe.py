"""Qwen3.5 / Qwen3.6 MoE: gated delta net and gated attention 3:1, routed experts with one shared expert.

Maths: facts/models.md 2.1, 2.2, 2.5, 2.6; names on disk: 3.1 and 3.3. The prefix `model.` is logical: a loader also
accepts `model.language_model.`.
"""

from dataclasses import replace

from firmtoken.compiler.facts import ModelFacts, TensorFacts, ValueFacts
from firmtoken.compiler.family import CheckpointConfig, CheckpointPart, Family, primitive
from firmtoken.compiler.family_facts import attention_facts
from firmtoken.compiler.family_steps import (
    HEAD_NORM,
    SOFTMAX_ROUTE,
    attention_body,
    head,
    mixer_layer,
)
from firmtoken.compiler.family_steps import experts as routed_experts
from firmtoken.compiler.family_tensors import (
    DenseTensors,
    activation_format,
    attention_values,
    dense_tensors,
    expert_values,
    head_values,
    layer_values,
    matrix,
    q_columns,
    values,
)
from firmtoken.compiler.program import Step
from firmtoken.schema.model import Geometry, LinearGeometry, Model

LAYER = "model.layers.{l}."
LINEAR = LAYER + "linear_attn."
FULL = LAYER + "self_attn."
MLP = LAYER + "mlp."
ZERO_CENTRED = 1.0
"""Norms multiply by 1 + w; only the one inside the gated delta net by w."""


def describe(model: Model, device_kind: str) -> ModelFacts:
    """Facts of this family for a device kind."""
    geometry, linear = model.geometry, _linear(model.geometry)
    facts = attention_facts(
        FAMILY.name,
        geometry,
        layer_kinds=layer_kinds(geometry.num_layers, geometry.full_attention_interval),
        tensors=_tensors(model, linear, dense_tensors(device_kind)),
        values=_values(geometry, linear, activation_format(device_kind)),
        expert_sources=tuple(MLP + f"experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")),
    )
    return replace(
        facts,
        shared_width=geometry.shared_intermediate_size,
        conv_elements=_conv_channels(linear) * (linear.conv_kernel - 1),
        conv_shape=(_conv_channels(linear), linear.conv_kernel - 1),
        recurrent_elements=linear.num_value_heads * linear.key_head_dim * linear.value_head_dim,
        recurrent_shape=(linear.num_value_heads, linear.key_head_dim, linear.value_head_dim),
        gated_attention=True,
    )


def _values(geometry: Geometry, linear: LinearGeometry, dtype: str) -> tuple[ValueFacts, ...]:
    """Activations by local name; legend of widths: facts/models.md 2.2, 2.5, 2.6."""
    heads, width = linear.num_value_heads, linear.num_value_heads * linear.value_head_dim
    return (
        *layer_values(geometry, dtype),
        *values(
            (
                ("u", "tile", _conv_channels(linear) + width + 2 * heads, dtype),
                ("gdn_o", "tile", width, dtype),
            )
        ),
        *attention_values(geometry, dtype, q_rows=_q_rows(geometry)),
        *expert_values(geometry, dtype),
        *values(
            (
                ("shared_a", "tokens", geometry.shared_intermediate_size, dtype),
                ("share", "tokens", 1, "fp32"),
                ("s", "tokens", geometry.hidden_size, dtype),
            )
        ),
        *head_values(geometry, dtype),
    )


def layer_kinds(num_layers: int, full_attention_interval: int) -> tuple[str, ...]:
    """Full attention at layers 3, 7, ... for an interval of 4."""
    return tuple(
        "full" if layer % full_attention_interval == full_attention_interval - 1 else "linear"
        for layer in range(num_layers)
    )


def _linear(geometry: Geometry) -> LinearGeometry:
    assert geometry.linear is not None, "`misfits` has seen to it"
    return geometry.linear


def _conv_channels(linear: LinearGeometry) -> int:
    keys = linear.num_key_heads * linear.key_head_dim
    return 2 * keys + linear.num_value_heads * linear.value_head_dim


def _q_rows(geometry: Geometry) -> int:
    # Each head of q is followed by its gate.
    return 2 * q_columns(geometry)


def _tensors(model: Model, linear: LinearGeometry, dense: DenseTensors) -> tuple[TensorFacts, ...]:
    geometry, formats = model.geometry, model.quantization
    hidden = geometry.hidden_size
    qkv_proj, attn_out = dense.attention(geometry, formats, FULL, q_rows=_q_rows(geometry))

    def norm(name: str, axis: str, size: int, source: str) -> TensorFacts:
        return dense.norm(name, axis, size, source, add=ZERO_CENTRED)

    return (
        dense.embed(geometry, formats.embedding),
        norm("in_norm", "layer", hidden, LAYER + "input_layernorm"),
        norm("post_norm", "layer", hidden, LAYER + "post_attention_layernorm"),
        *_linear_tensors(linear, hidden, formats.linear_attention, dense),
        qkv_proj,
        norm("q_norm", "full", geometry.head_dim, FULL + "q_norm"),
        norm("k_norm", "full", geometry.head_dim, FULL + "k_norm"),
        attn_out,
        dense.router(geometry, formats.router, MLP + "gate"),
        *_shared_tensors(geometry, formats.shared_expert, dense),
        norm("final_norm", "", hidden, "model.norm"),
        dense.lm_head(geometry, formats.lm_head),
    )


def _linear_tensors(
    linear: LinearGeometry, hidden: int, format_name: str, dense: DenseTensors
) -> tuple[TensorFacts, ...]:
    width = linear.num_value_heads * linear.value_head_dim
    channels, heads = _conv_channels(linear), linear.num_value_heads
    return (
        dense.tensor(
            "in_proj",
            "linear",
            matrix(LINEAR + "in_proj_qkv", channels, hidden, format_name=format_name),
            matrix(LINEAR + "in_proj_z", width, hidden, format_name=format_name),
            matrix(LINEAR + "in_proj_b", heads, hidden),
            matrix(LINEAR + "in_proj_a", heads, hidden),
        ),
        dense.tensor("conv", "linear", matrix(LINEAR + "conv1d", channels, 1, linear.conv_kernel)),
        dense.parameter("a_log", "linear", heads, LINEAR + "A_log"),
        dense.parameter("dt_bias", "linear", heads, LINEAR + "dt_bias"),
        dense.norm("gdn_norm", "linear", linear.value_head_dim, LINEAR + "norm"),
        dense.tensor(
            "gdn_out",
            "linear",
            matrix(LINEAR + "out_proj", hidden, width, format_name=format_name),
        ),
    )


def _shared_tensors(
    geometry: Geometry, format_name: str, dense: DenseTensors
) -> tuple[TensorFacts, ...]:
    hidden, width = geometry.hidden_size, geometry.shared_intermediate_size
    return (
        dense.tensor(
            "shared_gate_up",
            "layer",
            matrix(MLP + "shared_expert.gate_proj", width, hidden, format_name=format_name),
            matrix(MLP + "shared_expert.up_proj", width, hidden, format_name=format_name),
        ),
        dense.tensor(
            "shared_down",
            "layer",
            matrix(MLP + "shared_expert.down_proj", hidden, width, format_name=format_name),
        ),
        dense.tensor("shared_gate", "layer", matrix(MLP + "shared_expert_gate", 1, hidden)),
    )


def mixer(kind: str) -> tuple[Step, ...]:
    """norm, projections, GDN or attention, output projection, residual, norm."""
    return mixer_layer(_gdn_body() if kind == "linear" else attention_body(HEAD_NORM, gated=True))


def _gdn_body() -> tuple[Step, ...]:
    conv_state, recurrent_state = (
        "conv_state:conv_state[l,o]",
        "recurrent_state:recurrent_state[l,o]",
    )
    return (
        primitive("linear", "x:h", writes="y:u", weights="w:in_proj[l]", rows="tile"),
        primitive(
            "conv", f"u {conv_state}", writes=f"c {conv_state}", weights="conv:conv[l]", rows="tile"
        ),
        primitive(
            "gates",
            "u",
            writes="beta decay",
            weights="a_log:a_log[l] dt_bias:dt_bias[l]",
            rows="tile",
        ),
        primitive(
            "delta", f"c beta decay {recurrent_state}", writes=f"d {recurrent_state}", rows="tile"
        ),
        primitive("gated_norm", "d u", writes="o:gdn_o", weights="norm:gdn_norm[l]", rows="tile"),
        primitive("linear", "x:gdn_o", writes="y", weights="w:gdn_out[l]", rows="tile"),
    )


def experts() -> tuple[Step, ...]:
    """Router, routed experts, shared expert, sum."""
    return routed_experts(SOFTMAX_ROUTE, _shared_body())


def _shared_body() -> tuple[Step, ...]:
    return (
        primitive(
            "shared_gate_up", "h", writes="sgu", weights="gate_up:shared_gate_up[l]", rows="tokens"
        ),
        primitive("shared_silu", "sgu", writes="sa", rows="tokens"),
        primitive("shared_down", "sa", writes="sd", weights="down:shared_down[l]", rows="tokens"),
        primitive("shared_scale", "h sd", writes="s", weights="gate:shared_gate[l]", rows="tokens"),
    )


CONFIG = CheckpointConfig(
    dialect="qwen3_5",
    keys={
        "shared_intermediate_size": "shared_expert_intermediate_size",
        "linear.num_key_heads": "linear_num_key_heads",
        "linear.num_value_heads": "linear_num_value_heads",
        "linear.key_head_dim": "linear_key_head_dim",
        "linear.value_head_dim": "linear_value_head_dim",
        "linear.conv_kernel": "linear_conv_kernel_dim",
    },
    stated={"tie_word_embeddings": False},
    granted={
        "attention_bias": False,
        "attn_output_gate": True,
        "hidden_act": "silu",
        "mlp_only_layers": None,
    },
    parts=(
        CheckpointPart(
            field="experts",
            axis="layer",
            modules=tuple(MLP + f"experts.0.{part}_proj" for part in ("gate", "up", "down")),
        ),
        CheckpointPart(
            field="shared_expert",
            axis="layer",
            modules=tuple(MLP + f"shared_expert.{part}_proj" for part in ("gate", "up", "down")),
        ),
        CheckpointPart(
            field="linear_attention",
            axis="linear",
            modules=tuple(LINEAR + part for part in ("in_proj_qkv", "in_proj_z", "out_proj")),
        ),
        CheckpointPart(
            field="attention",
            axis="full",
            modules=tuple(FULL + f"{part}_proj" for part in "qkv"),
        ),
        CheckpointPart(field="attention_out", axis="full", modules=(FULL + "o_proj",)),
        CheckpointPart(field="lm_head", axis="", modules=("lm_head",)),
    ),
    prefix="model.language_model.",
    stacks_plain_experts=True,
)
FAMILY = Family(
    name="qwen3_5_moe",
    describe=describe,
    mixer=mixer,
    experts=experts,
    head=head,
    config=CONFIG,
    linear_layers=True,
    shared_expert=True,
)
