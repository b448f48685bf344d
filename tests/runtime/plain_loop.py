"""The embedded model as a person would write it: plain torch, one sequence, one token at a time, caches as tensors.

No engine, no pages, no plan, no code of the package: the yardstick of `ft bench`, and a second opinion on the numbers.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.functional import linear, rms_norm, silu, softplus

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
PREFIX = "model.language_model."


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight in fp32, by its name without the prefix and `.weight`."""
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    stored: dict[str, torch.Tensor] = {}
    for file in sorted(set(weight_map.values())):
        with safe_open(folder / file, framework="pt") as shard:
            stored |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(("_scale", "_scale_2")):
            continue
        scale = stored.get(f"{name}_scale")
        if tensor.dtype == torch.uint8:
            assert scale is not None
            codes = torch.stack((tensor & 15, tensor >> 4), dim=-1).flatten(-2).int()
            blocks = E2M1[codes].unflatten(-1, (-1, 16)) * scale.float().unsqueeze(-1)
            number = blocks.flatten(-2) * stored[f"{name}_scale_2"]
        elif tensor.dtype == torch.float8_e4m3fn:
            assert scale is not None
            number = tensor.float() * scale
        else:
            number = tensor.float()
        weights[name.removeprefix(PREFIX).removesuffix(".weight")] = number
    return weights


class PlainLoop:
    """`step(token)` appends a token and returns the logits [V] of the next one. Keys and values as in `kv_dtype`."""

    def __init__(
        self, folder: Path, max_tokens: int = 2048, kv_dtype: torch.dtype = torch.float32
    ) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())["text_config"]
        self.config = config
        self.kinds: list[str] = config["layer_types"]
        self.max_tokens = max_tokens
        self.kv_dtype = kv_dtype
        self.eps = config["rms_norm_eps"]
        self.weights = read_weights(folder)
        self.layers = [self._layer(layer, kind) for layer, kind in enumerate(self.kinds)]
        self.final_norm = 1 + self.weights["norm"]
        rotary = int(config["head_dim"] * config["partial_rotary_factor"])
        steps = torch.arange(0, rotary, 2) / rotary
        self.frequencies = 1 / config["rope_parameters"]["rope_theta"] ** steps
        self.reset()

    def _layer(self, layer: int, kind: str) -> dict[str, Any]:
        stem = f"layers.{layer}."
        own = {n.removeprefix(stem): w for n, w in self.weights.items() if n.startswith(stem)}
        experts = range(self.config["num_experts"])
        own["gate_up"] = [
            torch.cat([own[f"mlp.experts.{e}.{half}_proj"] for half in ("gate", "up")])
            for e in experts
        ]
        own["down"] = [own[f"mlp.experts.{e}.down_proj"] for e in experts]
        names = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
        own["shared_gate_up"] = torch.cat([own[name] for name in names])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            own[norm] = 1 + own[norm]
        if kind == "full_attention":
            own["qkv"] = torch.cat([own[f"self_attn.{name}_proj"] for name in "qkv"])
            own["q_norm"], own["k_norm"] = 1 + own["self_attn.q_norm"], 1 + own["self_attn.k_norm"]
        else:
            names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            own["in_proj"] = torch.cat([own[f"linear_attn.{name}"] for name in names])
            own["conv"] = own["linear_attn.conv1d"].squeeze(1)
            own["decay"] = -own["linear_attn.A_log"].exp()
        return own

    def reset(self) -> None:
        """An empty sequence."""
        config = self.config
        self.length = 0
        heads = config["linear_num_value_heads"]
        state = (heads, config["linear_key_head_dim"], config["linear_value_head_dim"])
        self.keys, self.values, self.states, self.windows = {}, {}, {}, {}
        for layer, kind in enumerate(self.kinds):
            if kind == "full_attention":
                shape = (config["num_key_value_heads"], self.max_tokens, config["head_dim"])
                self.keys[layer], self.values[layer] = torch.empty(shape), torch.empty(shape)
            else:
                self.states[layer] = torch.zeros(state)
                self.windows[layer] = torch.zeros(self.layers[layer]["conv"].shape)

    @torch.inference_mode()
    def step(self, token: int) -> torch.Tensor:
        """Logits [V] after one more token."""
        x = self.weights["embed_tokens"][token]
        for layer, kind in enumerate(self.kinds):
            own = self.layers[layer]
            h = rms_norm(x, x.shape, own["input_layernorm"], self.eps)
            mixer = self._attention if kind == "full_attention" else self._delta_net
            x = x + mixer(layer, own, h)
            h = rms_norm(x, x.shape, own["post_attention_layernorm"], self.eps)
            x = x + self._experts(own, h)
        self.length += 1
        return linear(rms_norm(x, x.shape, self.final_norm, self.eps), self.weights["lm_head"])

    def _attention(self, layer: int, own: dict[str, Any], h: torch.Tensor) -> torch.Tensor:
        config = self.config
        heads, kv_heads, width = (
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["head_dim"],
        )
        columns = linear(h, own["qkv"]).view(-1, width)
        q, gate = columns[: 2 * heads].view(heads, 2, width).unbind(1)
        k, v = columns[2 * heads :].view(2, kv_heads, width).unbind(0)
        q = self._rotate(rms_norm(q, (width,), own["q_norm"], self.eps))
        k = self._rotate(rms_norm(k, (width,), own["k_norm"], self.eps))
        # fp32 numbers as pages of that format would hold them: a format is a choice of the plan, not an error.
        self.keys[layer][:, self.length] = k.to(self.kv_dtype)
        self.values[layer][:, self.length] = v.to(self.kv_dtype)
        seen = self.length + 1
        keys, values = self.keys[layer][:, :seen], self.values[layer][:, :seen]
        scores = q.view(kv_heads, -1, width) @ keys.transpose(1, 2) * width**-0.5
        out = (scores.softmax(-1) @ values).view(heads, width) * gate.sigmoid()
        return linear(out.view(-1), own["self_attn.o_proj"])

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.length * self.frequencies
        half = angles.shape[0]
        left, right, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=1)

    def _delta_net(self, layer: int, own: dict[str, Any], h: torch.Tensor) -> torch.Tensor:
        config = self.config
        key_heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
        heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
        channels, width = 2 * key_heads * key_dim + heads * value_dim, heads * value_dim
        qkv, z, b, a = linear(h, own["in_proj"]).split([channels, width, heads, heads])
        window = torch.cat((self.windows[layer][:, 1:], qkv.unsqueeze(1)), dim=1)
        self.windows[layer] = window
        mixed = silu((window * own["conv"]).sum(1))
        q, k, v = mixed.split([key_heads * key_dim, key_heads * key_dim, width])
        q, k = q.view(key_heads, key_dim), k.view(key_heads, key_dim)
        q = q * (q.square().sum(-1, keepdim=True) + 1e-6).rsqrt() * key_dim**-0.5
        k = k * (k.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        q = q.repeat_interleave(heads // key_heads, 0).unsqueeze(1)
        k = k.repeat_interleave(heads // key_heads, 0).unsqueeze(1)
        decay = (own["decay"] * softplus(a + own["linear_attn.dt_bias"])).exp().view(-1, 1, 1)
        state = self.states[layer] * decay
        change = (v.view(heads, 1, value_dim) - k @ state) * b.sigmoid().view(-1, 1, 1)
        self.states[layer] = state = state + k.transpose(1, 2) @ change
        out = rms_norm((q @ state).squeeze(1), (value_dim,), own["linear_attn.norm"], self.eps)
        return linear(out.view(-1) * silu(z), own["linear_attn.out_proj"])

    def _experts(self, own: dict[str, Any], h: torch.Tensor) -> torch.Tensor:
        best, ids = linear(h, own["mlp.gate"]).topk(self.config["num_experts_per_tok"])
        gate, up = linear(h, own["shared_gate_up"]).chunk(2)
        out = linear(silu(gate) * up, own["mlp.shared_expert.down_proj"])
        out = out * linear(h, own["mlp.shared_expert_gate"]).sigmoid()
        for weight, expert in zip(best.softmax(0), ids.tolist(), strict=True):
            gate, up = linear(h, own["gate_up"][expert]).chunk(2)
            out = out + weight * linear(silu(gate) * up, own["down"][expert])
        return out
