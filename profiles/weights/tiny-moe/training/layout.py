"""Which tensor is stored in which format, and under which name: nvidia's layout of Qwen3.6-35B-A3B-NVFP4."""

from __future__ import annotations

import re
from typing import Any

LAYERS = 8
EXPERTS = 32
PREFIX = "model.language_model."
LAYER_TYPES = tuple("full_attention" if i % 4 == 3 else "linear_attention" for i in range(LAYERS))
FP8_MODULES = re.compile(
    r"(linear_attn\.(in_proj_qkv|in_proj_z|out_proj)|self_attn\.[qkvo]_proj)\.weight$"
)
NVFP4_MODULES = re.compile(r"(shared_expert\.(gate|up|down)_proj|^lm_head)\.weight$")
FUSED_EXPERTS = re.compile(r"mlp\.experts\.(gate_up_proj|down_proj)$")
TEXT_CONFIG: dict[str, Any] = {  # JSON
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "bos_token_id": 4080,
    "dtype": "bfloat16",
    "eos_token_id": 4080,
    "full_attention_interval": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "layer_types": list(LAYER_TYPES),
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_value_head_dim": 32,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 32768,
    "model_type": "qwen3_5_moe_text",
    "moe_intermediate_size": 128,
    "num_attention_heads": 4,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "pad_token_id": None,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 128,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 4096,
}


def stored_name(name: str) -> str:
    """The checkpoint's name of a parameter of transformers' Qwen3_5MoeForCausalLM."""
    return name if name.startswith("lm_head.") else PREFIX + name.removeprefix("model.")


def config() -> dict[str, Any]:  # JSON
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "dtype": "bfloat16",
        "model_type": "qwen3_5_moe",
        "text_config": TEXT_CONFIG,
        "tie_word_embeddings": False,
        "transformers_version": "5.17.0",
        "quantization_config": _quantization_config(),
    }


def hf_quant_config() -> dict[str, Any]:  # JSON
    return {
        "producer": {"name": "firmtoken tiny-moe", "version": "1"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": "FP8",
            "quantized_layers": _quantized_layers(),
            "exclude_modules": ["mtp.layers.0*", "mtp*"],
        },
    }


def generation_config() -> dict[str, Any]:  # JSON
    return {
        "bos_token_id": 4080,
        "do_sample": True,
        "eos_token_id": [4082, 4080],
        "pad_token_id": 4080,
        "temperature": 0.3,
        "top_k": 20,
        "top_p": 0.95,
        "transformers_version": "5.17.0",
    }


def _quantized_layers() -> dict[str, dict[str, str | int]]:
    fp8: dict[str, str | int] = {"quant_algo": "FP8"}
    nvfp4: dict[str, str | int] = {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    layers: dict[str, dict[str, str | int]] = {}
    for index, kind in enumerate(LAYER_TYPES):
        layer = f"{PREFIX}layers.{index}."
        if kind == "linear_attention":
            for module in ("out_proj", "in_proj_qkv", "in_proj_z"):
                layers[f"{layer}linear_attn.{module}"] = fp8
        else:
            for module in ("q_proj", "k_proj", "v_proj", "o_proj"):
                layers[f"{layer}self_attn.{module}"] = fp8
        layers[f"{layer}mlp.experts"] = nvfp4
        for module in ("gate_proj", "up_proj", "down_proj"):
            layers[f"{layer}mlp.shared_expert.{module}"] = nvfp4
    layers["lm_head"] = nvfp4
    return layers


def _quantization_config() -> dict[str, Any]:  # JSON
    layers = _quantized_layers()
    groups = {}
    for group, (algorithm, bits, extra) in enumerate(
        (("FP8", 8, {}), ("W4A16_NVFP4", 4, {"group_size": 16}))
    ):
        number = {"dynamic": False, "num_bits": bits, "type": "float", **extra}
        targets = sorted(name for name in layers if layers[name]["quant_algo"] == algorithm)
        groups[f"group_{group}"] = {
            "input_activations": number,
            "weights": number,
            "targets": targets,
        }
    return {
        "config_groups": groups,
        "quantized_layers": layers,
        "ignore": ["mtp.layers.0*", "mtp*"],
        "quant_algo": "MIXED_PRECISION",
        "producer": {"name": "firmtoken tiny-moe", "version": "1"},
        "quant_method": "modelopt",
    }
