"""What a model's geometry says of bytes and arithmetic, from facts/models.md 2 to 4 alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

Json = Mapping[str, Any]  # Any: JSON has no narrower type
Parts = tuple[tuple[int, str], ...]
"""Rows and the format in which the checkpoint stores them."""

CENTRED = ("in_norm", "post_norm", "q_norm", "k_norm", "final_norm")
LOOKED_UP = ("embed", "routes")
"""Tables of which a token takes a row."""
PLACE = 256
"""Everything begins at a multiple of it."""
ELEMENT = {"fp32": 4, "bf16": 2, "fp8": 1, "int32": 4, "int64": 8, "u8": 1}


def up(number: int, unit: int = PLACE) -> int:
    """The next multiple of `unit`."""
    return (number + unit - 1) // unit * unit


def stored(elements: int, format_name: str) -> int:
    """Bytes with scales (models.md 3.2): nvfp4 4 bits, one byte for each 16 and one fp32; fp8 one fp32."""
    if format_name == "nvfp4":
        return elements // 2 + elements // 16 + 4
    return elements * ELEMENT[format_name] + (4 if format_name == "fp8" else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One dense tensor name: how many there are, and one's bytes."""

    axis: str
    copies: int
    shape: tuple[int, ...]
    parts: Parts
    """As the device keeps them."""
    bytes: int
    add: float
    """Norms of Qwen3.5 multiply by 1 + w (models.md 2.1), but for the one inside the delta net."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of a model on one kind of device."""

    kinds: tuple[str, ...]
    hidden: int
    experts: int
    routed: int
    tensors: Mapping[str, Tensor]
    widths: Mapping[str, tuple[str, int, str]]
    """Activation -> unit of its rows, elements of a row, format."""
    kv_elements: int
    """Keys and values of one token, all layers."""
    conv_elements: int
    recurrent_elements: int
    activation: str
    expert_elements: tuple[int, int]
    """Of one matrix of an expert: inner width, hidden size."""
    flop_pair: int
    """FLOP for each pair of a token and an earlier one."""

    @cached_property
    def layers(self) -> int:
        return len(self.kinds)

    @cached_property
    def total(self) -> int:
        return self.layers * self.experts

    @cached_property
    def linear(self) -> int:
        return self.kinds.count("linear")

    @cached_property
    def state_bytes(self) -> int:
        """Of one sequence, all linear layers (models.md 4)."""
        columns = self.conv_elements * ELEMENT[self.activation]
        return self.linear * (columns + self.recurrent_elements * 4)

    @cached_property
    def weight_bytes(self) -> int:
        return sum(row.copies * up(row.bytes) for row in self.tensors.values())

    @cached_property
    def read_bytes(self) -> int:
        """Dense bytes that a step reads."""
        read = (row for name, row in self.tensors.items() if name not in LOOKED_UP)
        return sum(row.copies * row.bytes for row in read)

    @cached_property
    def head(self) -> int:
        """Parameters of the head, which sees the last token of a sequence."""
        return prod(self.tensors["lm_head"].shape)

    @cached_property
    def active(self) -> int:
        """Parameters that a token is multiplied with in the layers."""
        dense = sum(
            row.copies * prod(row.shape)
            for name, row in self.tensors.items()
            if name not in (*LOOKED_UP, "lm_head") and len(row.shape) == 2
        )
        return dense + self.layers * self.routed * 3 * prod(self.expert_elements)


def read_model(model: Json, device: str) -> Model:
    """The sizes of a profile's model on `cpu` or `cuda`."""
    shape, family = model["geometry"], model["family"]
    every = shape["full_attention_interval"]
    kinds = tuple(
        "full" if (layer + 1) % every == 0 else "linear" for layer in range(shape["num_layers"])
    )
    linear = shape["linear"] if "linear" in kinds else None
    attention = kinds.count("full") * shape["num_q_heads"] * shape["head_dim"]
    activation = "fp32" if device == "cpu" else "bf16"
    channels = _channels(linear) if linear else 0
    return Model(
        kinds=kinds,
        hidden=shape["hidden_size"],
        experts=shape["num_experts"],
        routed=shape["num_experts_per_token"],
        tensors=_tensors(model, kinds, family, "fp32" if device == "cpu" else ""),
        widths=_widths(shape, linear, family, activation),
        kv_elements=2 * kinds.count("full") * shape["num_kv_heads"] * shape["head_dim"],
        conv_elements=channels * (linear["conv_kernel"] - 1) if linear else 0,
        recurrent_elements=_values(linear) * linear["key_head_dim"] if linear else 0,
        activation=activation,
        expert_elements=(shape["moe_intermediate_size"], shape["hidden_size"]),
        flop_pair=4 * attention,
    )


def _values(linear: Json) -> int:
    return int(linear["num_value_heads"] * linear["value_head_dim"])


def _channels(linear: Json) -> int:
    return int(2 * linear["num_key_heads"] * linear["key_head_dim"] + _values(linear))


def _q_rows(shape: Json, family: str) -> int:
    # Qwen3.5 has a gate beside each head of q (models.md 2.2).
    return int(shape["num_q_heads"] * shape["head_dim"] * (2 if family == "qwen3_5_moe" else 1))


def _tensors(
    model: Json, kinds: tuple[str, ...], family: str, override: str
) -> Mapping[str, Tensor]:
    shape, formats = model["geometry"], model["quantization"]
    hidden, vocab, experts = shape["hidden_size"], shape["vocab_size"], shape["num_experts"]
    q, kv = shape["num_q_heads"] * shape["head_dim"], shape["num_kv_heads"] * shape["head_dim"]
    q_rows, attention = _q_rows(shape, family), formats["attention"]
    by_row = family == "minimax_m2"
    rows: dict[str, tuple[str, Parts, tuple[int, ...]]] = {
        "embed": ("", ((vocab, formats["embedding"]),), (hidden,)),
        "in_norm": ("layer", ((hidden, "fp32"),), ()),
        "post_norm": ("layer", ((hidden, "fp32"),), ()),
        "qkv_proj": ("full", ((q_rows, attention), (kv, attention), (kv, attention)), (hidden,)),
        "q_norm": ("full", ((q if by_row else shape["head_dim"], "fp32"),), ()),
        "k_norm": ("full", ((kv if by_row else shape["head_dim"], "fp32"),), ()),
        "attn_out": ("full", ((hidden, formats.get("attention_out") or attention),), (q,)),
        "router": ("layer", ((experts, formats["router"]),), (hidden,)),
        "final_norm": ("", ((hidden, "fp32"),), ()),
        "lm_head": ("", ((vocab, formats["lm_head"]),), (hidden,)),
    }
    if by_row:
        rows["router_bias"] = ("layer", ((experts, "fp32"),), ())
    if family == "qwen3_5_moe":
        width = shape["shared_intermediate_size"]
        shared = formats["shared_expert"]
        rows["shared_gate_up"] = ("layer", ((width, shared), (width, shared)), (hidden,))
        rows["shared_down"] = ("layer", ((hidden, shared),), (width,))
        rows["shared_gate"] = ("layer", ((1, "bf16"),), (hidden,))
    if "linear" in kinds:
        rows |= _linear_tensors(shape["linear"], hidden, formats["linear_attention"])
    if (model.get("source", {}).get("synthetic") or {}).get("routes"):
        # 8 conversations of 1,024 positions, and the experts of each (prescribed_routes.py).
        rows["routes"] = ("layer", ((8 * 1024, "int32"),), (shape["num_experts_per_token"],))
    copies = {
        "": 1,
        "layer": len(kinds),
        **{kind: kinds.count(kind) for kind in ("linear", "full")},
    }
    return {
        name: Tensor(
            axis=axis,
            copies=copies[axis],
            shape=(sum(count for count, _ in parts), *columns),
            parts=tuple((count, _kept(form, override)) for count, form in parts),
            bytes=sum(
                stored(count * prod(columns), _kept(form, override)) for count, form in parts
            ),
            add=1.0 if family == "qwen3_5_moe" and name in CENTRED else 0.0,
        )
        for name, (axis, parts, columns) in rows.items()
    }


def _kept(form: str, override: str) -> str:
    return form if form == "int32" else override or form


def _linear_tensors(
    linear: Json, hidden: int, format_name: str
) -> dict[str, tuple[str, Parts, tuple[int, ...]]]:
    heads, width, channels = linear["num_value_heads"], _values(linear), _channels(linear)
    packed = ((channels, format_name), (width, format_name), (heads, "bf16"), (heads, "bf16"))
    return {
        "in_proj": ("linear", packed, (hidden,)),
        "conv": ("linear", ((channels, "bf16"),), (linear["conv_kernel"],)),
        "a_log": ("linear", ((heads, "fp32"),), ()),
        "dt_bias": ("linear", ((heads, "fp32"),), ()),
        "gdn_norm": ("linear", ((linear["value_head_dim"], "fp32"),), ()),
        "gdn_out": ("linear", ((hidden, format_name),), (width,)),
    }


def _widths(
    shape: Json, linear: Json | None, family: str, form: str
) -> Mapping[str, tuple[str, int, str]]:
    hidden, k = shape["hidden_size"], shape["num_experts_per_token"]
    q, kv = shape["num_q_heads"] * shape["head_dim"], shape["num_kv_heads"] * shape["head_dim"]
    widths = {
        "hid": ("tokens", hidden, form),
        "h": ("tokens", hidden, form),
        "qkv": ("tile", _q_rows(shape, family) + 2 * kv, form),
        "q": ("tile", q, form),
        "attn_o": ("tile", q, form),
        "y": ("tile", hidden, form),
        "ids": ("tokens", k, "int32"),
        "wts": ("tokens", k, "fp32"),
        "slots": ("tokens", k, "int32"),
        "a": ("pairs", shape["moe_intermediate_size"], form),
        "rows": ("pairs", hidden, form),
        "s": ("tokens", hidden, form),
        "shared_a": ("tokens", shape["shared_intermediate_size"], form),
        "share": ("tokens", 1, "fp32"),
        "last": ("sequences", hidden, form),
        "logits": ("sequences", shape["vocab_size"], "fp32"),
        "tokens": ("sequences", 1, "int64"),
    }
    if linear:
        width = _values(linear)
        heads = 2 * linear["num_value_heads"]
        widths["u"] = ("tile", _channels(linear) + width + heads, form)
        widths["gdn_o"] = ("tile", width, form)
    return widths


def folds_shared(asked: Json) -> bool:
    """Whether the shared expert is part of other launches in a decode step of a resident plan."""
    model, kernels = asked["model"], asked["kernels"]
    formats = model["quantization"]
    both = formats["shared_expert"] == formats["experts"] == "nvfp4"
    keys = ("shared_expert", "shared_expert.decode")
    named = any(isinstance(kernels.get(key), str) for key in keys)
    on_gpu = asked["hardware"]["gpu"] is not None
    return both and model["family"] == "qwen3_5_moe" and on_gpu and not named
