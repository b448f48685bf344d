"""MiniMax M2: full attention, one norm over all heads of q and one over k, sigmoid routing, no shared expert.

Maths: facts/models.md 2.1, 2.4, 2.6; names on disk: 3.1 and 3.4. A file may hold prediction heads (`mtp`): ignored.
"""

from firmtoken.compiler.facts import ModelFacts, TensorFacts
from firmtoken.compiler.family import CheckpointConfig, CheckpointPart, Family
from firmtoken.compiler.family_facts import plain_facts
from firmtoken.compiler.family_steps import (
    ROW_NORM,
    SIGMOID_ROUTE,
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
MLP = LAYER + "block_sparse_moe."
GATE, UP, DOWN = "w1", "w3", "w2"


def describe(model: Model, device_kind: str) -> ModelFacts:
    """Facts of this family for a device kind."""
    return plain_facts(
        FAMILY.name,
        model.geometry,
        device_kind,
        tensors=_tensors(model, dense_tensors(device_kind)),
        expert_sources=tuple(MLP + f"experts.{{e}}.{part}" for part in (GATE, UP, DOWN)),
    )


def _tensors(model: Model, dense: DenseTensors) -> tuple[TensorFacts, ...]:
    geometry, formats = model.geometry, model.quantization
    hidden = geometry.hidden_size
    k_rows = geometry.num_kv_heads * geometry.head_dim
    return (
        dense.embed(geometry, formats.embedding),
        dense.norm("in_norm", "layer", hidden, LAYER + "input_layernorm"),
        dense.norm("post_norm", "layer", hidden, LAYER + "post_attention_layernorm"),
        *dense.attention(geometry, formats, FULL, q_rows=q_columns(geometry)),
        dense.norm("q_norm", "full", q_columns(geometry), FULL + "q_norm"),
        dense.norm("k_norm", "full", k_rows, FULL + "k_norm"),
        dense.router(geometry, formats.router, MLP + "gate"),
        # A sum with sigmoids decides who is chosen: bf16 would make ties.
        dense.parameter(
            "router_bias", "layer", geometry.num_experts, MLP + "e_score_correction_bias"
        ),
        dense.norm("final_norm", "", hidden, "model.norm"),
        dense.lm_head(geometry, formats.lm_head),
    )


def mixer(kind: str) -> tuple[Step, ...]:
    """norm, attention, residual, norm: every layer is `full`."""
    assert kind == "full"
    return mixer_layer(attention_body(ROW_NORM, gated=False))


def experts() -> tuple[Step, ...]:
    """Router, routed experts, sum."""
    return routed_experts(SIGMOID_ROUTE)


CONFIG = CheckpointConfig(
    dialect="minimax_m2",
    keys={"moe_intermediate_size": "intermediate_size"},
    stated={"tie_word_embeddings": False},
    granted={
        "attn_type_list": 1,
        "hidden_act": "silu",
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "sliding_window": None,
        "use_qk_norm": True,
        "use_routing_bias": True,
    },
    parts=(
        CheckpointPart(
            field="experts",
            axis="layer",
            modules=tuple(MLP + f"experts.0.{part}" for part in (GATE, UP, DOWN)),
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
    name="minimax_m2", describe=describe, mixer=mixer, experts=experts, head=head, config=CONFIG
)
