"""Dense tensors and activations of a family as facts: shapes, formats, bytes, and where the checkpoint has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from firmtoken.compiler.facts import TensorFacts, ValueFacts
from firmtoken.compiler.tensor_bytes import tensor_bytes
from firmtoken.schema.model import Geometry

Parts = dict[str, tuple[int, str]]
"""Source in the checkpoint -> (rows, format in which the checkpoint has them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTensors:
    """Makes the facts of tensors that are no routed experts, for one device."""

    override: str
    """The format that the device keeps everything in; empty: as the checkpoint has it."""

    def tensor(
        self,
        name: str,
        axis: str,
        shape: tuple[int, ...],
        parts: Parts,
        *,
        add: float = 0.0,
        read_by_decode: bool = True,
    ) -> TensorFacts:
        """One name: its parts lie below each other, and the first one's format chooses the kernel for all."""
        _, first_format = next(iter(parts.values()))
        columns = shape[1:]
        return TensorFacts(
            name=name,
            axis=axis,
            shape=shape,
            dtype=self.override or first_format,
            bytes=sum(
                tensor_bytes((rows, *columns), self.override or format_name)
                for rows, format_name in parts.values()
            ),
            sources=tuple(parts),
            add=add,
            read_by_decode=read_by_decode,
        )

    def norm(
        self, name: str, axis: str, size: int, source: str, *, add: float = 0.0
    ) -> TensorFacts:
        """Norm weights are kept in fp32: w near 0 loses bits once 1 is added in bf16."""
        return self.tensor(name, axis, (size,), {source: (size, "fp32")}, add=add)

    def embed(self, geometry: Geometry, format_name: str) -> TensorFacts:
        """The token embedding; a decode step reads a few rows of it only."""
        rows = geometry.vocab_size
        return self.tensor(
            "embed",
            "",
            (rows, geometry.hidden_size),
            {"model.embed_tokens": (rows, format_name)},
            read_by_decode=False,
        )

    def lm_head(self, geometry: Geometry, format_name: str) -> TensorFacts:
        """The output head."""
        rows = geometry.vocab_size
        return self.tensor(
            "lm_head", "", (rows, geometry.hidden_size), {"lm_head": (rows, format_name)}
        )

    def attention(
        self, geometry: Geometry, format_name: str, prefix: str, *, q_rows: int
    ) -> tuple[TensorFacts, TensorFacts]:
        """Projections of full attention: `q_rows` of q (twice the heads' width where a gate is among them), k, v; o."""
        hidden = geometry.hidden_size
        kv_rows = geometry.num_kv_heads * geometry.head_dim
        parts = {
            prefix + "q_proj": (q_rows, format_name),
            prefix + "k_proj": (kv_rows, format_name),
            prefix + "v_proj": (kv_rows, format_name),
        }
        columns = q_columns(geometry)
        return (
            self.tensor("qkv_proj", "full", (q_rows + 2 * kv_rows, hidden), parts),
            self.tensor(
                "attn_out", "full", (hidden, columns), {prefix + "o_proj": (hidden, format_name)}
            ),
        )

    def router(self, geometry: Geometry, format_name: str, source: str) -> TensorFacts:
        """The gate that scores experts."""
        rows = geometry.num_experts
        return self.tensor(
            "router", "layer", (rows, geometry.hidden_size), {source: (rows, format_name)}
        )


def dense_tensors(device_kind: str) -> DenseTensors:
    """The CPU device keeps everything in fp32."""
    return DenseTensors(override="fp32" if device_kind == "cpu" else "")


def activation_format(device_kind: str) -> str:
    """Format of hidden states and what is computed from them."""
    return "fp32" if device_kind == "cpu" else "bf16"


def q_columns(geometry: Geometry) -> int:
    """Width of all heads of q, and of what attention gives."""
    return geometry.num_q_heads * geometry.head_dim


def attention_values(geometry: Geometry, dtype: str, *, q_rows: int) -> tuple[ValueFacts, ...]:
    """What full attention computes; `q_rows` as in `DenseTensors.attention`."""
    columns = q_columns(geometry)
    kv_rows = geometry.num_kv_heads * geometry.head_dim
    return values(
        (
            ("qkv", "tile", q_rows + 2 * kv_rows, dtype),
            ("q", "tile", columns, dtype),
            ("attn_o", "tile", columns, dtype),
        )
    )


def layer_values(geometry: Geometry, dtype: str) -> tuple[ValueFacts, ...]:
    """What a layer of any kind computes."""
    hidden = geometry.hidden_size
    return values((("hid", "tokens", hidden, dtype), ("h", "tokens", hidden, dtype)))


def expert_values(geometry: Geometry, dtype: str) -> tuple[ValueFacts, ...]:
    """What routing and routed experts compute, and the mixer's output before them."""
    hidden, k = geometry.hidden_size, geometry.num_experts_per_token
    return values(
        (
            ("y", "tile", hidden, dtype),
            ("ids", "tokens", k, "int32"),
            ("wts", "tokens", k, "fp32"),
            ("a", "pairs", geometry.moe_intermediate_size, dtype),
            ("rows", "pairs", hidden, dtype),
        )
    )


def head_values(geometry: Geometry, dtype: str) -> tuple[ValueFacts, ...]:
    """What the output head computes."""
    return values(
        (
            ("last", "sequences", geometry.hidden_size, dtype),
            ("logits", "sequences", geometry.vocab_size, "fp32"),
        )
    )


def values(rows: Iterable[tuple[str, str, int, str]]) -> tuple[ValueFacts, ...]:
    """Activations in shorthand: name, unit, width, format."""
    return tuple(
        ValueFacts(name=name, unit=unit, width=width, dtype=dtype)
        for name, unit, width, dtype in rows
    )


def active_parameters(
    geometry: Geometry, layer_kinds: Sequence[str], tensors: Iterable[TensorFacts]
) -> int:
    """Parameters that one token multiplies with in the layers: their matrices, and the experts that it visits."""
    counts = {"layer": len(layer_kinds)}
    dense = sum(
        counts.get(tensor.axis, layer_kinds.count(tensor.axis)) * tensor.shape[0] * tensor.shape[1]
        for tensor in tensors
        if len(tensor.shape) == 2 and tensor.axis
    )
    expert = 3 * geometry.hidden_size * geometry.moe_intermediate_size
    return dense + len(layer_kinds) * geometry.num_experts_per_token * expert
