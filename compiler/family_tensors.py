"""Dense tensors and activations of a family as facts: shapes, formats, bytes, and where the checkpoint has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.facts import TensorFacts, TensorPart, ValueFacts
from firmtoken.compiler.tensor_bytes import tensor_bytes
from firmtoken.schema.model import Geometry, Quantization

PLAIN = "bf16"
"""What no export quantises, in all published files (facts/models.md 3.1, 3.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseTensors:
    """Makes the facts of tensors that are no routed experts, for one device."""

    override: str
    """The format that the device keeps everything in; empty: as the checkpoint has it."""

    def tensor(
        self,
        name: str,
        axis: str,
        *parts: TensorPart,
        kept: str = "",
        add: float = 0.0,
        read_by_decode: bool = True,
    ) -> TensorFacts:
        """One name: its parts lie below each other, and the first one's format chooses the kernel for all.

        `kept`: the format on the device where it is not the checkpoint's.
        """
        kept = self.override or kept
        # Of a depthwise convolution [C, 1, K] nobody needs the 1.
        columns = parts[0].shape[1:] if len(parts[0].shape) < 3 else parts[0].shape[2:]
        rows = [part.shape[0] for part in parts]
        return TensorFacts(
            name=name,
            axis=axis,
            shape=(sum(rows), *columns),
            dtype=kept or parts[0].format,
            bytes=sum(
                tensor_bytes((part.shape[0], *columns), kept or part.format) for part in parts
            ),
            parts=parts,
            kept=kept,
            add=add,
            read_by_decode=read_by_decode,
        )

    def parameter(self, name: str, axis: str, size: int, source: str) -> TensorFacts:
        """A vector that is no module's weight; what is computed from it needs fp32."""
        part = TensorPart(name=source, shape=(size,), format=PLAIN)
        return self.tensor(name, axis, part, kept="fp32")

    def norm(
        self, name: str, axis: str, size: int, source: str, *, add: float = 0.0
    ) -> TensorFacts:
        """Norm weights are kept in fp32: w near 0 loses bits once 1 is added in bf16."""
        return self.tensor(name, axis, matrix(source, size), kept="fp32", add=add)

    def embed(self, geometry: Geometry, format_name: str) -> TensorFacts:
        """The token embedding; a decode step reads a few rows of it only."""
        table = matrix(
            "model.embed_tokens", geometry.vocab_size, geometry.hidden_size, format_name=format_name
        )
        return self.tensor("embed", "", table, read_by_decode=False)

    def lm_head(self, geometry: Geometry, format_name: str) -> TensorFacts:
        """The output head."""
        head = matrix("lm_head", geometry.vocab_size, geometry.hidden_size, format_name=format_name)
        return self.tensor("lm_head", "", head)

    def attention(
        self, geometry: Geometry, formats: Quantization, prefix: str, *, q_rows: int
    ) -> tuple[TensorFacts, TensorFacts]:
        """Projections of full attention: `q_rows` of q (twice the heads' width where a gate is among them), k, v; o."""
        hidden = geometry.hidden_size
        kv_rows = geometry.num_kv_heads * geometry.head_dim

        def projection(name: str, rows: int, columns: int) -> TensorPart:
            return matrix(prefix + name, rows, columns, format_name=formats.attention)

        out = projection("o_proj", hidden, q_columns(geometry))
        return (
            self.tensor(
                "qkv_proj",
                "full",
                projection("q_proj", q_rows, hidden),
                projection("k_proj", kv_rows, hidden),
                projection("v_proj", kv_rows, hidden),
            ),
            self.tensor(
                "attn_out", "full", replace(out, format=formats.attention_out or formats.attention)
            ),
        )

    def router(self, geometry: Geometry, format_name: str, source: str) -> TensorFacts:
        """The gate that scores experts."""
        gate = matrix(source, geometry.num_experts, geometry.hidden_size, format_name=format_name)
        return self.tensor("router", "layer", gate)


def matrix(source: str, *shape: int, format_name: str = PLAIN) -> TensorPart:
    """The weight of a module."""
    return TensorPart(name=f"{source}.weight", shape=shape, format=format_name)


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
