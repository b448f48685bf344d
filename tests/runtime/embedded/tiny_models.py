"""transformers' own models of each family, tiny, random, with nothing left at a value that hides whether it is used."""

from typing import Any

import torch
from transformers import (
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

BASE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
    "bos_token_id": None,
    "eos_token_id": None,
}


def qwen3_5_moe() -> Qwen3_5MoeForCausalLM:
    config = Qwen3_5MoeTextConfig(
        **BASE,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=32,
        linear_value_head_dim=64,
        num_experts=8,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        },
    )
    return Qwen3_5MoeForCausalLM(eager(config))


def qwen3_moe() -> Qwen3MoeForCausalLM:
    config = Qwen3MoeConfig(
        **BASE,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        intermediate_size=256,
        moe_intermediate_size=64,
        norm_topk_prob=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    return Qwen3MoeForCausalLM(eager(config))


def minimax_m2() -> MiniMaxM2ForCausalLM:
    config = MiniMaxM2Config(
        **BASE,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=8,
        intermediate_size=64,
        rope_theta=5e6,
        rotary_dim=16,
    )
    return MiniMaxM2ForCausalLM(eager(config))


FAMILIES = {"qwen3_5_moe": qwen3_5_moe, "qwen3_moe": qwen3_moe, "minimax_m2": minimax_m2}


def eager(config: Any) -> Any:  # transformers' configs share no useful type
    """Sums in one order: neither fused attention nor grouped products."""
    config._attn_implementation = config._experts_implementation = "eager"
    return config


def tiny_model(family: str) -> Any:  # a class of transformers
    """In fp32. Norms begin at 0 or 1, biases at 0 or 1: perturbed (facts/models.md 6.3)."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            if name.endswith("dt_bias"):
                parameter.add_(0.5 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.3 * torch.randn_like(buffer))
    return model.float().eval()
