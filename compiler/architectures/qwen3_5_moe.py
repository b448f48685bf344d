"""Qwen3.5 / Qwen3.6 MoE: gated delta net and gated attention 3:1, routed experts with one shared expert.

Maths: facts/models.md 2.1, 2.2, 2.5, 2.6; names on disk: 3.1 and 3.3. The prefix `model.` is logical: a loader also
accepts `model.language_model.`.
"""

from firmtoken.compiler.facts import ModelFacts, TensorFacts, ValueFacts
from firmtoken.compiler.family import Family, primitive
from firmtoken.compiler.program import Step
from firmtoken.compiler.tensor_bytes import tensor_bytes
from firmtoken.schema.model import Geometry, LinearGeometry, Model

LAYER = "model.layers.{l}."
LINEAR = LAYER + "linear_attn."
FULL = LAYER + "self_attn."
MLP = LAYER + "mlp."


def describe(model: Model, device_kind: str) -> ModelFacts:
    """Facts of this family for a device kind."""
    geometry, linear = model.geometry, _linear(model.geometry)
    kinds = layer_kinds(geometry.num_layers, geometry.full_attention_interval)
    tensors = _tensors(model, linear, "fp32" if device_kind == "cpu" else "")
    num_full, num_linear = kinds.count("full"), kinds.count("linear")
    return ModelFacts(
        family=FAMILY.name,
        layer_kinds=kinds,
        hidden_size=geometry.hidden_size,
        vocab_size=geometry.vocab_size,
        max_positions=geometry.max_position_embeddings,
        tensors=tensors,
        experts_per_layer=geometry.num_experts,
        experts_per_token=geometry.num_experts_per_token,
        expert_width=geometry.moe_intermediate_size,
        shared_width=geometry.shared_intermediate_size,
        kv_elements_per_token=2 * num_full * geometry.num_kv_heads * geometry.head_dim,
        conv_elements=_conv_channels(linear) * (linear.conv_kernel - 1),
        recurrent_elements=linear.num_value_heads * linear.key_head_dim * linear.value_head_dim,
        active_parameters=_active_parameters(geometry, tensors, num_linear, num_full),
        attention_flops_per_pair=4 * num_full * geometry.num_q_heads * geometry.head_dim,
        values=_values(geometry, linear, "fp32" if device_kind == "cpu" else "bf16"),
        conv_shape=(_conv_channels(linear), linear.conv_kernel - 1),
        recurrent_shape=(linear.num_value_heads, linear.key_head_dim, linear.value_head_dim),
        gated_attention=True,
        kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        expert_sources=tuple(MLP + f"experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")),
    )


def _values(geometry: Geometry, linear: LinearGeometry, dtype: str) -> tuple[ValueFacts, ...]:
    """Activations by local name; legend of widths: facts/models.md 2.2, 2.5, 2.6."""
    hidden, k = geometry.hidden_size, geometry.num_experts_per_token
    heads, values = linear.num_value_heads, linear.num_value_heads * linear.value_head_dim
    q_rows = geometry.num_q_heads * geometry.head_dim
    kv_rows = geometry.num_kv_heads * geometry.head_dim
    rows = (
        ("hid", "tokens", hidden, dtype),
        ("h", "tokens", hidden, dtype),
        ("u", "tile", _conv_channels(linear) + values + 2 * heads, dtype),
        ("gdn_o", "tile", values, dtype),
        ("qkv", "tile", 2 * q_rows + 2 * kv_rows, dtype),
        ("q", "tile", q_rows, dtype),
        ("attn_o", "tile", q_rows, dtype),
        ("y", "tile", hidden, dtype),
        ("ids", "tokens", k, "int32"),
        ("wts", "tokens", k, "fp32"),
        ("a", "pairs", geometry.moe_intermediate_size, dtype),
        ("rows", "pairs", hidden, dtype),
        ("s", "tokens", hidden, dtype),
        ("last", "sequences", hidden, dtype),
        ("logits", "sequences", geometry.vocab_size, "fp32"),
    )
    return tuple(
        ValueFacts(name=name, unit=unit, width=width, dtype=kind)
        for name, unit, width, kind in rows
    )


def layer_kinds(num_layers: int, full_attention_interval: int) -> tuple[str, ...]:
    """Full attention at layers 3, 7, ... for an interval of 4."""
    return tuple(
        "full" if layer % full_attention_interval == full_attention_interval - 1 else "linear"
        for layer in range(num_layers)
    )


def _linear(geometry: Geometry) -> LinearGeometry:
    assert geometry.linear is not None, "the schema asks for `geometry.linear` of a hybrid model"
    return geometry.linear


def _conv_channels(linear: LinearGeometry) -> int:
    keys = linear.num_key_heads * linear.key_head_dim
    return 2 * keys + linear.num_value_heads * linear.value_head_dim


def _active_parameters(
    geometry: Geometry, tensors: tuple[TensorFacts, ...], num_linear: int, num_full: int
) -> int:
    counts = {"": 1, "layer": geometry.num_layers, "linear": num_linear, "full": num_full}
    dense = sum(
        counts[tensor.axis] * tensor.shape[0] * tensor.shape[1]
        for tensor in tensors
        if len(tensor.shape) == 2 and tensor.read_by_decode
    )
    expert = 3 * geometry.hidden_size * geometry.moe_intermediate_size
    return dense + geometry.num_layers * geometry.num_experts_per_token * expert


def _tensors(model: Model, linear: LinearGeometry, override: str) -> tuple[TensorFacts, ...]:
    geometry, formats = model.geometry, model.quantization
    hidden, head_dim = geometry.hidden_size, geometry.head_dim
    q_rows, kv_rows = geometry.num_q_heads * head_dim, geometry.num_kv_heads * head_dim
    values = linear.num_value_heads * linear.value_head_dim
    channels, heads = _conv_channels(linear), linear.num_value_heads
    width = geometry.shared_intermediate_size

    def tensor(
        name: str,
        axis: str,
        shape: tuple[int, ...],
        parts: dict[str, tuple[int, str]],
        *,
        add: float = 0.0,
        read_by_decode: bool = True,
    ) -> TensorFacts:
        """`parts`: source -> (rows, format on the checkpoint's device layout)."""
        kinds = {override or format_name for _, format_name in parts.values()}
        columns = shape[1:]
        return TensorFacts(
            name=name,
            axis=axis,
            shape=shape,
            dtype="fp8" if kinds == {"fp8", "bf16"} else next(iter(kinds)),
            bytes=sum(
                tensor_bytes((rows, *columns), override or format_name)
                for rows, format_name in parts.values()
            ),
            sources=tuple(parts),
            add=add,
            read_by_decode=read_by_decode,
        )

    def norm(name: str, axis: str, size: int, source: str, *, add: float = 1.0) -> TensorFacts:
        """Norm weights are kept in fp32: w near 0 loses bits once 1 is added in bf16."""
        return tensor(name, axis, (size,), {source: (size, "fp32")}, add=add)

    mixer, attention = formats.linear_attention, formats.attention
    return (
        tensor(
            "embed",
            "",
            (geometry.vocab_size, hidden),
            {"model.embed_tokens": (geometry.vocab_size, formats.embedding)},
            read_by_decode=False,
        ),
        norm("in_norm", "layer", hidden, LAYER + "input_layernorm"),
        norm("post_norm", "layer", hidden, LAYER + "post_attention_layernorm"),
        tensor(
            "in_proj",
            "linear",
            (channels + values + 2 * heads, hidden),
            {
                LINEAR + "in_proj_qkv": (channels, mixer),
                LINEAR + "in_proj_z": (values, mixer),
                LINEAR + "in_proj_b": (heads, "bf16"),
                LINEAR + "in_proj_a": (heads, "bf16"),
            },
        ),
        tensor(
            "conv",
            "linear",
            (channels, linear.conv_kernel),
            {LINEAR + "conv1d": (channels, "bf16")},
        ),
        tensor("a_log", "linear", (heads,), {LINEAR + "A_log": (heads, "fp32")}),
        tensor("dt_bias", "linear", (heads,), {LINEAR + "dt_bias": (heads, "fp32")}),
        norm("gdn_norm", "linear", linear.value_head_dim, LINEAR + "norm", add=0.0),
        tensor("gdn_out", "linear", (hidden, values), {LINEAR + "out_proj": (hidden, mixer)}),
        tensor(
            "qkv_proj",
            "full",
            (2 * q_rows + 2 * kv_rows, hidden),
            {
                FULL + "q_proj": (2 * q_rows, attention),
                FULL + "k_proj": (kv_rows, attention),
                FULL + "v_proj": (kv_rows, attention),
            },
        ),
        norm("q_norm", "full", head_dim, FULL + "q_norm"),
        norm("k_norm", "full", head_dim, FULL + "k_norm"),
        tensor("attn_out", "full", (hidden, q_rows), {FULL + "o_proj": (hidden, attention)}),
        tensor(
            "router",
            "layer",
            (geometry.num_experts, hidden),
            {MLP + "gate": (geometry.num_experts, formats.router)},
        ),
        tensor(
            "shared_gate_up",
            "layer",
            (2 * width, hidden),
            {
                MLP + "shared_expert.gate_proj": (width, formats.shared_expert),
                MLP + "shared_expert.up_proj": (width, formats.shared_expert),
            },
        ),
        tensor(
            "shared_down",
            "layer",
            (hidden, width),
            {MLP + "shared_expert.down_proj": (hidden, formats.shared_expert)},
        ),
        tensor("shared_gate", "layer", (1, hidden), {MLP + "shared_expert_gate": (1, "bf16")}),
        norm("final_norm", "", hidden, "model.norm"),
        tensor(
            "lm_head",
            "",
            (geometry.vocab_size, hidden),
            {"lm_head": (geometry.vocab_size, formats.lm_head)},
        ),
    )


def mixer(kind: str) -> tuple[Step, ...]:
    """norm, projections, GDN or attention, output projection, residual, norm."""
    body = _gdn_body() if kind == "linear" else _attention_body()
    return (
        primitive("norm", "hid", writes="h", weights="norm:in_norm[l]", rows="tile"),
        *body,
        primitive("add", "hid y", writes="hid", rows="tile"),
        primitive("norm", "hid", writes="h", weights="norm:post_norm[l]", rows="tile"),
    )


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


def _attention_body() -> tuple[Step, ...]:
    return (
        primitive("linear", "x:h", writes="y:qkv", weights="w:qkv_proj[l]", rows="tile"),
        primitive("q_norm", "qkv", writes="qn", weights="q_norm:q_norm[l]", rows="tile"),
        primitive("k_norm", "qkv", writes="kn", weights="k_norm:k_norm[l]", rows="tile"),
        primitive("rope", "qn kn", writes="q kr", rows="tile"),
        primitive("kv_write", "kr qkv kv:kv[l,o]", writes="kv:kv[l,o]", rows="tile"),
        primitive("attention", "q qkv kv:kv[l,o]", writes="o:attn_o", rows="tile"),
        primitive("linear", "x:attn_o", writes="y", weights="w:attn_out[l]", rows="tile"),
    )


def experts() -> tuple[Step, ...]:
    """Router, routed experts, shared expert, sum."""
    return (
        primitive("router", "h", writes="scores", weights="router:router[l]", rows="tokens"),
        primitive("top_k", "scores", writes="ids wts", rows="tokens"),
        primitive("gate_up", "x:h ids", writes="gu", rows="pairs"),
        primitive("silu_mul", "gu", writes="a", rows="pairs"),
        primitive("moe_down", "a ids", writes="rows", rows="pairs"),
        primitive(
            "shared_gate_up", "h", writes="sgu", weights="gate_up:shared_gate_up[l]", rows="tokens"
        ),
        primitive("shared_silu", "sgu", writes="sa", rows="tokens"),
        primitive("shared_down", "sa", writes="sd", weights="down:shared_down[l]", rows="tokens"),
        primitive("shared_scale", "h sd", writes="s", weights="gate:shared_gate[l]", rows="tokens"),
        primitive("weighted_sum", "rows wts s", writes="moe", rows="tokens"),
        primitive("residual", "moe hid", writes="hid", rows="tokens"),
    )


def head() -> tuple[Step, ...]:
    """Final norm and vocabulary projection."""
    return (
        primitive("final_norm", "last", writes="ln", weights="norm:final_norm", rows="sequences"),
        primitive("lm_head", "ln", writes="logits", weights="w:lm_head", rows="sequences"),
    )


FAMILY = Family(name="qwen3_5_moe", describe=describe, mixer=mixer, experts=experts, head=head)
