"""Checkpoints of full size without their data: real headers over files that are one hole."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeVisionModel

from firmtoken.runtime.weights.layout import LaidTensor
from firmtoken.runtime.weights.synthetic import num_bytes
from firmtoken.runtime.weights.synthetic_files import plan_shards

INDEX = "model.safetensors.index.json"


def write_headers(folder: Path, tensors: Iterable[LaidTensor]) -> None:
    """Shards of 5 GB and their index."""
    weight_map = {}
    for shard in plan_shards(tensors):
        size = len(shard.header) + sum(map(num_bytes, shard.tensors))
        (folder / shard.name).write_bytes(shard.header)
        os.truncate(folder / shard.name, size)
        weight_map |= {tensor.name: shard.name for tensor in shard.tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def vision_tensors(config: dict[str, Any]) -> Iterator[LaidTensor]:
    """The vision tower of a Qwen3.5 or 3.6, as transformers has it in memory."""
    with torch.device("meta"):
        vision = Qwen3_5MoeConfig(vision_config=config["vision_config"]).vision_config
        tower: Any = Qwen3_5MoeVisionModel._from_config(vision)
    for name, tensor in tower.state_dict().items():
        yield unused(f"model.visual.{name}", tuple(tensor.shape))


def mtp_tensors(config: dict[str, Any]) -> Iterator[LaidTensor]:
    """The one prediction layer of Qwen3.6, in bf16 with stacked experts (facts/models.md 2.7, 3.3)."""
    text = config["text_config"]
    hidden, experts = text["hidden_size"], text["num_experts"]
    width, head_dim = text["moe_intermediate_size"], text["head_dim"]
    q, kv = (text[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads"))
    yield unused("mtp.fc.weight", (hidden, 2 * hidden))
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        yield unused(f"mtp.{name}.weight", (hidden,))
    matrices = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (2 * q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "self_attn.q_norm": (head_dim,),
        "self_attn.k_norm": (head_dim,),
        "mlp.gate": (experts, hidden),
        "mlp.shared_expert.gate_proj": (width, hidden),
        "mlp.shared_expert.up_proj": (width, hidden),
        "mlp.shared_expert.down_proj": (hidden, width),
        "mlp.shared_expert_gate": (1, hidden),
    }
    for name, shape in matrices.items():
        yield unused(f"mtp.layers.0.{name}.weight", shape)
    yield unused("mtp.layers.0.mlp.experts.gate_up_proj", (experts, 2 * width, hidden))
    yield unused("mtp.layers.0.mlp.experts.down_proj", (experts, hidden, width))


def unused(name: str, shape: tuple[int, ...]) -> LaidTensor:
    return LaidTensor(name=name, dtype="BF16", shape=shape, row="", role="numbers")
