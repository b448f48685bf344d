"""A checkpoint of each family as transformers saves it: `ft profile model`, plan, load, and transformers' logits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MiniMaxM2Config,
    MiniMaxM2ForCausalLM,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from firmtoken.runtime.cli.profile import make_model_profile

LENGTHS = (1, 65, 130)
DECODE_STEPS = 6
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
        linear_value_head_dim=32,
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


def eager(config: Any) -> Any:  # transformers' configs share no useful type
    config._attn_implementation = config._experts_implementation = "eager"
    return config


def perturbed(model: Any) -> Any:
    """Norms and biases begin at values that hide whether they are used (facts/models.md 6.3)."""
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


@pytest.mark.parametrize("slots", ["auto", "10"], ids=["resident", "offloaded"])
@pytest.mark.parametrize("build", [qwen3_5_moe, qwen3_moe, minimax_m2])
def test_logits_equal_transformers(
    build: Callable[[], Any], slots: str, tmp_path: Path, start: Callable[..., Any]
) -> None:
    torch.manual_seed(0)
    model = perturbed(build())
    model.save_pretrained(tmp_path / "checkpoint")
    file = tmp_path / "model.yaml"
    assert make_model_profile(str(tmp_path / "checkpoint"), output=str(file)) == 0
    running = start("tiny-cpu", f"model={file}", f"experts.slots={slots}", "serving.context=1k")
    assert running.plan.experts.placement == ("resident" if slots == "auto" else "offload")

    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 512, (max(LENGTHS),), generator=generator).tolist()
    for length in LENGTHS:
        found = running.logits_alone(length, tokens[:length], 1 + DECODE_STEPS)
        text = running.text(length)
        with torch.inference_mode():
            ids = torch.tensor([[*tokens[:length], *text[:-1]]])
            wanted = model(ids).logits[0, length - 1 :]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
