"""Qwen3 MoE: full attention with a norm for each head, routed experts, no shared expert.

Maths: facts/models.md 2.1, 2.3, 2.6; names on disk: 3.1 and 3.5. `norm_topk_prob: false` exists in no release and is
not this family.
"""

from firmtoken.compiler.facts import ModelFacts, TensorFacts
from firmtoken.compiler.family import CheckpointConfig, CheckpointPart, Family
from firmtoken.compiler.family_facts import plain_facts
from firmtoken.compiler.family_steps import (
    HEAD_NORM,
    SOFTMAX_ROUTE,
    attention_body,
    head,
    mixer_layer,
)
from firmtoken.compiler.family_steps import experts as routed_experts
from firmtoken.compiler.family_tensors import DenseTensors, dense_tensors, q_columns
from firmtoken.compiler.program import Step
from firmtoken.schema.model import Model

LAYER = "model.layers.{l}."
FULL = LAYER + "self_attn."
MLP = LAYER + "mlp."


def describe(model: Model, device_kind: str) -> ModelFacts:
    """Facts of this family for a device kind."""
    return plain_facts(
        FAMILY.name,
        model.geometry,
        device_kind,
        tensors=_tensors(model, dense_tensors(device_kind)),
        expert_sources=tuple(MLP + f"experts.{{e}}.{part}_proj" for part in ("gate", "up", "down")),
    )


def _tensors(model: Model, dense: DenseTensors) -> tuple[TensorFacts, ...]:
    geometry, formats = model.geometry, model.quantization
    hidden, head_dim = geometry.hidden_size, geometry.head_dim
    return (
        dense.embed(geometry, formats.embedding),
        dense.norm("in_norm", "layer", hidden, LAYER + "input_layernorm"),
        dense.norm("post_norm", "layer", hidden, LAYER + "post_attention_layernorm"),
        *dense.attention(geometry, formats, FULL, q_rows=q_columns(geometry)),
        dense.norm("q_norm", "full", head_dim, FULL + "q_norm"),
        dense.norm("k_norm", "full", head_dim, FULL + "k_norm"),
        dense.router(geometry, formats.router, MLP + "gate"),
        dense.norm("final_norm", "", hidden, "model.norm"),
        dense.lm_head(geometry, formats.lm_head),
    )


def mixer(kind: str) -> tuple[Step, ...]:
    """norm, attention, residual, norm: every layer is `full`."""
    assert kind == "full"
    return mixer_layer(attention_body(HEAD_NORM, gated=False))


def experts() -> tuple[Step, ...]:
    """Router, routed experts, sum."""
    return routed_experts(SOFTMAX_ROUTE)


CONFIG = CheckpointConfig(
    dialect="qwen3",
    keys={},
    stated={"norm_topk_prob": True, "tie_word_embeddings": False},
    granted={
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
        "mlp_only_layers": None,
        "use_sliding_window": False,
    },
    parts=(
        CheckpointPart(
            field="experts",
            axis="layer",
            modules=tuple(MLP + f"experts.0.{part}_proj" for part in ("gate", "up", "down")),
        ),
        CheckpointPart(
            field="attention",
            axis="full",
            modules=tuple(FULL + f"{part}_proj" for part in "qkv"),
        ),
        CheckpointPart(field="attention_out", axis="full", modules=(FULL + "o_proj",)),
        CheckpointPart(field="lm_head", axis="", modules=("lm_head",)),
    ),
)
FAMILY = Family(
    name="qwen3_moe", describe=describe, mixer=mixer, experts=experts, head=head, config=CONFIG
)
