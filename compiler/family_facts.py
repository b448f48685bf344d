"""Facts of a model that its geometry gives whatever its family is, and those of a family that has nothing else."""

from firmtoken.compiler.facts import ModelFacts, TensorFacts, ValueFacts
from firmtoken.compiler.family_tensors import (
    activation_format,
    active_parameters,
    attention_values,
    expert_values,
    head_values,
    layer_values,
    q_columns,
)
from firmtoken.schema.model import Geometry


def plain_facts(
    family: str,
    geometry: Geometry,
    device_kind: str,
    *,
    tensors: tuple[TensorFacts, ...],
    expert_sources: tuple[str, ...],
) -> ModelFacts:
    """Facts of a model whose layers all have full attention without a gate, and that shares no expert."""
    dtype = activation_format(device_kind)
    return attention_facts(
        family,
        geometry,
        layer_kinds=("full",) * geometry.num_layers,
        tensors=tensors,
        values=(
            *layer_values(geometry, dtype),
            *attention_values(geometry, dtype, q_rows=q_columns(geometry)),
            *expert_values(geometry, dtype),
            *head_values(geometry, dtype),
        ),
        expert_sources=expert_sources,
    )


def attention_facts(
    family: str,
    geometry: Geometry,
    *,
    layer_kinds: tuple[str, ...],
    tensors: tuple[TensorFacts, ...],
    values: tuple[ValueFacts, ...],
    expert_sources: tuple[str, ...],
) -> ModelFacts:
    """The part of the facts that layers with full attention and routed experts decide."""
    num_full = layer_kinds.count("full")
    return ModelFacts(
        family=family,
        layer_kinds=layer_kinds,
        hidden_size=geometry.hidden_size,
        vocab_size=geometry.vocab_size,
        max_positions=geometry.max_position_embeddings,
        tensors=tensors,
        experts_per_layer=geometry.num_experts,
        experts_per_token=geometry.num_experts_per_token,
        expert_width=geometry.moe_intermediate_size,
        shared_width=0,
        kv_elements_per_token=2 * num_full * geometry.num_kv_heads * geometry.head_dim,
        conv_elements=0,
        recurrent_elements=0,
        active_parameters=active_parameters(geometry, layer_kinds, tensors),
        attention_flops_per_pair=4 * num_full * q_columns(geometry),
        values=values,
        kv_heads=geometry.num_kv_heads,
        head_dim=geometry.head_dim,
        expert_sources=expert_sources,
    )
