"""What each rounding of the GPU's kernels does to the embedded model's logits, simulated in fp32. No test of CI.

    PYTHONPATH=.src python tests/device/roundings.py [--prompts N] [--transformers]

Needs no GPU. Every text at once, teacher-forced; where kernels store a number in a narrower format, it is rounded. A
line for all roundings with FP8 and with bf16 pages (or keys), for each one left out (bf16 pages) and for each alone;
with the router's own choices and with those of fp32. `--transformers`: that library's bf16 model beside its fp32 model.
"""

import argparse
import json
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from reference_texts import FOLDER, ROOT, Text, compute, questions
from torch.nn.functional import linear, pad, rms_norm, silu, softplus

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
EVERYWHERE = {
    **dict.fromkeys(("hid", "h mixer", "h experts", "h router", "u", "qkv", "gdn", "gdn o"), BF16),
    **dict.fromkeys(("q", "attn o", "y", "a", "rows", "s", "last"), BF16),
    "weights": FP16,
    **dict.fromkeys(("k", "v"), FP8),
}
"""Names as in the plan's buffers; `gdn` is a head's output before its norm, `weights` attention's."""
WITH_BF16_PAGES = EVERYWHERE | {"k": BF16, "v": BF16, "weights": BF16}

Formats = Mapping[str, torch.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """N texts, padded to P tokens; what follows a text does not matter to it."""

    ids: torch.Tensor
    """int64 [N, P]"""
    counted: torch.Tensor
    """bool [N, P]: from the prompt's last token on."""

    @classmethod
    def of(cls, texts: list[Text]) -> "Texts":
        longest = max(len(text.prompt) + len(text.answer) for text in texts)
        ids = torch.zeros(len(texts), longest, dtype=torch.long)
        counted = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            whole = [*text.prompt, *text.answer]
            ids[row, : len(whole)] = torch.tensor(whole)
            counted[row, len(text.prompt) - 1 : len(whole)] = True
        return cls(ids=ids, counted=counted)


class Simulated:
    """The model, rounding where it is told to; `experts` of each layer are taken instead of its own choice."""

    def __init__(
        self, loop: Any, formats: Formats, experts: list[torch.Tensor] | None = None
    ) -> None:
        self._loop = loop
        self._config = loop.config
        self._formats = formats
        self._given = experts
        self.experts: list[torch.Tensor] = []
        """int64 [N, P, k] of each layer."""

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """fp32 [N, P, V]"""
        loop = self._loop
        hid = loop.weights["embed_tokens"][ids]
        for layer, kind in enumerate(loop.kinds):
            own = loop.layers[layer]
            h = self._round("h mixer", self._norm(hid, own["input_layernorm"]))
            mixer = self._attention if kind == "full_attention" else self._delta_net
            hid = self._round("hid", hid + self._round("y", mixer(own, h)))
            h = self._norm(hid, own["post_attention_layernorm"])
            hid = self._round("hid", hid + self._experts(layer, own, h))
        last = self._round("last", self._norm(hid, loop.final_norm))
        return linear(last, loop.weights["lm_head"])

    def _round(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._formats.get(name, torch.float32)).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight.shape, weight, self._loop.eps)

    def _attention(self, own: dict[str, Any], h: torch.Tensor) -> torch.Tensor:
        config = self._config
        heads, width = config["num_attention_heads"], config["head_dim"]
        kv_heads = config["num_key_value_heads"]
        columns = self._round("qkv", linear(h, own["qkv"])).unflatten(-1, (-1, width))
        q, gate = columns[:, :, : 2 * heads].unflatten(2, (heads, 2)).unbind(3)
        k, v = columns[:, :, 2 * heads :].unflatten(2, (2, kv_heads)).unbind(2)
        q = self._round("q", self._rotate(self._norm(q, own["q_norm"]))).transpose(1, 2)
        k = self._round("k", self._rotate(self._norm(k, own["k_norm"]))).transpose(1, 2)
        v = self._round("v", v).transpose(1, 2)
        shared = heads // kv_heads
        scores = q @ k.repeat_interleave(shared, 1).transpose(2, 3) * width**-0.5
        later = torch.ones(scores.shape[-2:]).triu(1).bool()
        scores = scores.masked_fill(later, -torch.inf)
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        out = self._round("weights", powers) @ v.repeat_interleave(shared, 1)
        out = (out / powers.sum(-1, keepdim=True)).transpose(1, 2) * gate.sigmoid()
        return linear(self._round("attn o", out.flatten(2)), own["self_attn.o_proj"])

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        angles = (torch.arange(x.shape[1])[:, None] * self._loop.frequencies)[:, None]
        half = angles.shape[-1]
        left, right, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)

    def _delta_net(self, own: dict[str, Any], h: torch.Tensor) -> torch.Tensor:
        config = self._config
        key_heads, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
        heads, value_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
        taps, length = own["conv"].shape[1], h.shape[1]
        sizes = [2 * key_heads * key_dim + heads * value_dim, heads * value_dim, heads, heads]
        u = self._round("u", linear(h, own["in_proj"]))
        qkv, z, b, a = u.split(sizes, -1)
        before = pad(qkv, (0, 0, taps - 1, 0))
        mixed = sum(before[:, tap : tap + length] * own["conv"][:, tap] for tap in range(taps))
        q, k, v = silu(mixed).split([key_heads * key_dim] * 2 + [heads * value_dim], -1)
        q, k = (x.unflatten(-1, (key_heads, key_dim)) for x in (q, k))
        q = q * (q.square().sum(-1, keepdim=True) + 1e-6).rsqrt() * key_dim**-0.5
        k = k * (k.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        q, k = (x.repeat_interleave(heads // key_heads, 2).unsqueeze(3) for x in (q, k))
        v = v.unflatten(-1, (heads, 1, value_dim))
        decay = (own["decay"] * softplus(a + own["linear_attn.dt_bias"])).exp()[..., None, None]
        strength = b.sigmoid()[..., None, None]
        state = torch.zeros(len(h), heads, key_dim, value_dim)
        outs = []
        for t in range(length):
            state = state * decay[:, t]
            change = (v[:, t] - k[:, t] @ state) * strength[:, t]
            state = state + k[:, t].transpose(2, 3) @ change
            outs.append((q[:, t] @ state).squeeze(2))
        out = self._norm(self._round("gdn", torch.stack(outs, 1)), own["linear_attn.norm"])
        return linear(self._round("gdn o", out.flatten(2) * silu(z)), own["linear_attn.out_proj"])

    def _experts(self, layer: int, own: dict[str, Any], wide: torch.Tensor) -> torch.Tensor:
        chosen = self._config["num_experts_per_tok"]
        scores = linear(self._round("h router", wide), own["mlp.gate"])
        experts = scores.topk(chosen).indices if self._given is None else self._given[layer]
        self.experts.append(experts)
        weights = scores.gather(-1, experts).softmax(-1).flatten(0, 1)
        h = self._round("h experts", wide)
        share = linear(h, own["mlp.shared_expert_gate"]).sigmoid()
        a = self._gated(h, own["shared_gate_up"])
        shared = self._round("s", linear(a, own["mlp.shared_expert.down_proj"]) * share)
        rows, total = h.flatten(0, 1), shared.flatten(0, 1).clone()
        for expert in range(self._config["num_experts"]):
            row, place = (experts.flatten(0, 1) == expert).nonzero(as_tuple=True)
            down = linear(self._gated(rows[row], own["gate_up"][expert]), own["down"][expert])
            total.index_add_(0, row, weights[row, place, None] * self._round("rows", down))
        return total.view_as(wide)

    def _gated(self, h: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = linear(h, gate_up).chunk(2, -1)
        return self._round("a", silu(gate) * up)


def say(name: str, experts: str, mine: torch.Tensor, theirs: torch.Tensor, **more: object) -> None:
    """Of the counted positions [n, V]; `divergence` is the mean of Kullback and Leibler's, in nats."""
    apart = (theirs - mine).abs().amax(-1)
    scale = float(mine.abs().max())
    best, second = mine.topk(2).values.unbind(-1)
    missed = theirs.argmax(-1) != mine.argmax(-1)
    expected = mine.log_softmax(-1)
    divergence = (expected.exp() * (expected - theirs.log_softmax(-1))).sum(-1).mean()
    line = {
        "roundings": name,
        "experts": experts,
        "equal": round(1 - float(missed.float().mean()), 5),
        "share_of_largest_logit": round(float(apart.max()) / scale, 5),
        "median": round(float(apart.median()), 4),
        "p90": round(float(apart.quantile(0.9)), 4),
        "p99": round(float(apart.quantile(0.99)), 4),
        "over_3_percent": int((apart > 0.03 * scale).sum()),
        "divergence": round(float(divergence), 5),
        "largest_margin": round(float((best - second)[missed].max() if missed.any() else 0), 3),
        **more,
    }
    print(json.dumps(line), flush=True)


def simulate(loop: Any, texts: Texts) -> None:
    plain = Simulated(loop, {})
    mine = plain.logits(texts.ids)[texts.counted]

    def both(name: str, formats: Formats) -> None:
        free = Simulated(loop, formats)
        theirs = free.logits(texts.ids)[texts.counted]
        others = [
            (one.sort().values != other.sort().values).any(-1)[texts.counted].float().mean()
            for one, other in zip(plain.experts, free.experts, strict=True)
        ]
        share = round(float(torch.stack(others).mean()), 5)
        say(name, "own", mine, theirs, other_experts=share)
        given = Simulated(loop, formats, plain.experts).logits(texts.ids)[texts.counted]
        say(name, "of fp32", mine, given)

    both("all, fp8 pages", EVERYWHERE)
    both("all, bf16 pages", WITH_BF16_PAGES)
    both("all, bf16 keys", EVERYWHERE | {"k": BF16})
    for name in EVERYWHERE:
        both(f"all but {name}", {k: v for k, v in WITH_BF16_PAGES.items() if k != name})
    for name in EVERYWHERE:
        both(f"only {name}", {name: WITH_BF16_PAGES[name]})
    for name in ("k", "v"):
        both(f"only {name}, fp8", {name: FP8})


def compare_transformers(loop: Any, texts: Texts) -> None:
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    config = Qwen3_5MoeTextConfig(**loop.config)
    config._attn_implementation = config._experts_implementation = "eager"
    model = Qwen3_5MoeForCausalLM(config).float().eval()
    stored = {}
    for name in model.state_dict():
        stem = name.removeprefix("model.").removesuffix(".weight")
        if stem in loop.weights:
            stored[name] = loop.weights[stem]
            continue
        layer = loop.layers[int(stem.split(".")[1])]
        stored[name] = torch.stack(layer["gate_up" if stem.endswith("gate_up_proj") else "down"])
    model.load_state_dict(stored)

    def logits() -> torch.Tensor:
        return model(input_ids=texts.ids, use_cache=False).logits.float()[texts.counted]

    mine = logits()
    say("none, transformers", "own", Simulated(loop, {}).logits(texts.ids)[texts.counted], mine)
    model.to(BF16)
    say("bf16, transformers", "own", mine, logits())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--transformers", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loop = runpy.run_path(str(ROOT / "tests/runtime/plain_loop.py"))["PlainLoop"](FOLDER)
    with torch.inference_mode():
        texts = Texts.of(compute(questions(arguments.prompts), "fp32"))
        if arguments.transformers:
            compare_transformers(loop, texts)
        else:
            simulate(loop, texts)


if __name__ == "__main__":
    main()
