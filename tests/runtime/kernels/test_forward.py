"""A whole forward pass put together from kernels by hand, against transformers: no engine, no plan."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, Qwen3_5MoeForCausalLM

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels import CARDS, load_entry
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots, make_arena

PAGE_SIZE = 64
NUM_PAGES = 40
STATE_SLOTS = 9


def kernel(op: str, name: str = "") -> Callable[..., Any]:
    ready = [card for card in CARDS if card.op == op and "cpu" in card.devices]
    if name:
        ready = [card for card in ready if card.name == name]
    return load_entry(min(ready, key=lambda card: card.rank).entry)


class Forward:
    """Kernels over the weights of a transformers model; pages and states start dirty."""

    def __init__(self, model: Qwen3_5MoeForCausalLM) -> None:
        self.config = config = model.config
        self.weights = {name: value.detach() for name, value in model.named_parameters()}
        self.eps = config.rms_norm_eps
        self.kv = {}
        self.states = {}
        layout = slot_parts("fp32", config.hidden_size, config.moe_intermediate_size)
        count = config.num_hidden_layers * config.num_experts
        self.arena = make_arena(torch.zeros(count, slot_bytes(layout), dtype=torch.uint8), layout)
        channels = model.model.layers[0].linear_attn.conv_dim
        state = (
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        for layer, kind in enumerate(config.layer_types):
            first = layer * config.num_experts
            experts = slice(first, first + config.num_experts)
            self.arena.parts["gate_up"][experts] = self.w(layer, "mlp.experts.gate_up_proj")
            self.arena.parts["down"][experts] = self.w(layer, "mlp.experts.down_proj")
            if kind == "full_attention":
                heads = (config.num_key_value_heads, config.head_dim)
                self.kv[layer] = torch.full((2, NUM_PAGES, PAGE_SIZE, *heads), torch.nan)
            else:
                self.states[layer] = (
                    torch.full((STATE_SLOTS, channels, config.linear_conv_kernel_dim - 1), 7.0),
                    torch.full((STATE_SLOTS, *state), 7.0),
                )

    def w(self, layer: int, name: str) -> torch.Tensor:
        return self.weights[f"model.layers.{layer}.{name}"]

    def start(self, batch: Batch) -> None:
        """Zero states for new sequences, as `restore` does without a snapshot."""
        moves = tuple((-1, s.live, s.shadow) for s in batch.segments if s.start == 0)
        fresh = Batch(
            rows=0,
            real_rows=0,
            token_ids=batch.token_ids,
            positions=batch.positions,
            token_slots=batch.token_slots,
            segments=(),
            moves=moves,
        )
        for conv, recurrent in self.states.values():
            snaps = torch.empty(0)
            kernel("restore")(fresh, snaps=snaps, conv_state=conv, recurrent_state=recurrent)

    def run(self, batch: Batch, mixer: str) -> torch.Tensor:
        """Logits of every row."""
        config, num_rows = self.config, batch.rows
        hid = torch.full((num_rows, config.hidden_size), torch.nan)
        h = torch.full_like(hid, torch.nan)
        y = torch.full_like(hid, torch.nan)
        kernel("embed")(batch, table=self.weights["model.embed_tokens.weight"], hid=hid)
        for layer, kind in enumerate(config.layer_types):
            norm = 1 + self.w(layer, "input_layernorm.weight")
            kernel("add_norm")(batch, hid=hid, h=h, norm=norm, eps=self.eps)
            if kind == "full_attention":
                self.attention(batch, layer, h, y)
            else:
                self.gdn(batch, layer, h, y, mixer)
            norm = 1 + self.w(layer, "post_attention_layernorm.weight")
            kernel("add_norm")(batch, hid=hid, y=y, h=h, norm=norm, eps=self.eps)
            self.moe(batch, layer, h, hid)
        logits = torch.full((num_rows, config.vocab_size), torch.nan)
        norm = 1 + self.weights["model.norm.weight"]
        w = self.weights["lm_head.weight"]
        kernel("head")(batch, last=hid, norm=norm, w=w, logits=logits, eps=self.eps)
        return logits

    def attention(self, batch: Batch, layer: int, h: torch.Tensor, y: torch.Tensor) -> None:
        config = self.config
        heads = {
            "num_q_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
            "gated": True,
            "page_size": PAGE_SIZE,
        }
        w = torch.cat([self.w(layer, f"self_attn.{name}_proj.weight") for name in "qkv"])
        qkv = torch.full((batch.rows, w.shape[0]), torch.nan)
        q = torch.full((batch.rows, config.num_attention_heads * config.head_dim), torch.nan)
        o = torch.full_like(q, torch.nan)
        kernel("linear")(batch, x=h, w=w, y=qkv)
        kernel("qk_norm_rope_kv")(
            batch,
            qkv=qkv,
            q=q,
            kv=self.kv[layer],
            q_norm=1 + self.w(layer, "self_attn.q_norm.weight"),
            k_norm=1 + self.w(layer, "self_attn.k_norm.weight"),
            rotary_dim=config.head_dim // 4,
            rope_theta=1e7,
            eps=self.eps,
            **heads,
        )
        scale = config.head_dim**-0.5
        kernel("attention")(batch, q=q, qkv=qkv, kv=self.kv[layer], o=o, scale=scale, **heads)
        kernel("linear")(batch, x=o, w=self.w(layer, "self_attn.o_proj.weight"), y=y)

    def gdn(self, batch: Batch, layer: int, h: torch.Tensor, y: torch.Tensor, mixer: str) -> None:
        config = self.config
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        w = torch.cat([self.w(layer, f"linear_attn.{name}.weight") for name in names])
        u = torch.full((batch.rows, w.shape[0]), torch.nan)
        width = config.linear_num_value_heads * config.linear_value_head_dim
        o = torch.full((batch.rows, width), torch.nan)
        conv_state, recurrent_state = self.states[layer]
        kernel("linear")(batch, x=h, w=w, y=u)
        kernel("gdn", mixer)(
            batch,
            u=u,
            conv_state=conv_state,
            recurrent_state=recurrent_state,
            o=o,
            conv=self.w(layer, "linear_attn.conv1d.weight").squeeze(1),
            a_log=self.w(layer, "linear_attn.A_log"),
            dt_bias=self.w(layer, "linear_attn.dt_bias"),
            norm=self.w(layer, "linear_attn.norm.weight"),
            num_key_heads=config.linear_num_key_heads,
            num_value_heads=config.linear_num_value_heads,
            key_head_dim=config.linear_key_head_dim,
            value_head_dim=config.linear_value_head_dim,
            conv_kernel=config.linear_conv_kernel_dim,
            eps=self.eps,
        )
        kernel("linear")(batch, x=o, w=self.w(layer, "linear_attn.out_proj.weight"), y=y)

    def moe(self, batch: Batch, layer: int, h: torch.Tensor, hid: torch.Tensor) -> None:
        config = self.config
        k, width = config.num_experts_per_tok, config.moe_intermediate_size
        ids = torch.full((batch.rows, k), 99, dtype=torch.int32)
        wts = torch.full((batch.rows, k), torch.nan)
        router = self.w(layer, "mlp.gate.weight")
        kernel("route")(batch, h=h, router=router, ids=ids, wts=wts, num_experts_per_token=k)
        first = layer * config.num_experts
        experts = ExpertSlots(first=first, count=config.num_experts, arena=self.arena)
        sizes = {
            "hidden_size": config.hidden_size,
            "expert_width": width,
            "num_experts_per_token": k,
        }
        a = torch.full((batch.rows * k, width), torch.nan)
        rows = torch.full((batch.rows * k, config.hidden_size), torch.nan)
        kernel("moe_gate_up")(batch, x=h, ids=ids, experts=experts, a=a, **sizes)
        kernel("moe_down")(batch, a=a, ids=ids, experts=experts, rows=rows, **sizes)
        s = torch.full_like(hid, torch.nan)
        halves = [self.w(layer, f"mlp.shared_expert.{n}_proj.weight") for n in ("gate", "up")]
        kernel("shared_expert")(
            batch,
            h=h,
            gate_up=torch.cat(halves),
            down=self.w(layer, "mlp.shared_expert.down_proj.weight"),
            gate=self.w(layer, "mlp.shared_expert_gate.weight"),
            s=s,
        )
        kernel("combine")(batch, rows=rows, wts=wts, s=s, hid=hid)


def tolerance(logits: torch.Tensor) -> float:
    """D19's, without the allowance for transformers' own noise."""
    return max(1e-4, 2e-4 * float(logits.abs().max()))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 129, 300])
def test_logits_equal_transformers_in_prefill_and_in_decode_after_it(
    model: Qwen3_5MoeForCausalLM, make_batch: Callable[..., Batch], part: Any, length: int
) -> None:
    tokens = torch.randint(0, 512, (length + 5,))
    wanted = model(tokens.unsqueeze(0)).logits[0]
    forward = Forward(model)
    pages = tuple(range(30, 30 - 6, -1))

    prompt = part(rows=length, pages=pages, token_ids=tuple(tokens[:length].tolist()))
    batch = make_batch([prompt], padding=3)
    forward.start(batch)
    got = forward.run(batch, "torch_chunk")[:length]
    assert (got - wanted[:length]).abs().max() < tolerance(wanted)

    for position in range(length, length + 5):
        token = (int(tokens[position]),)
        step = make_batch([part(rows=1, start=position, pages=pages, token_ids=token)])
        got = forward.run(step, "torch_recurrent")[0]
        assert (got - wanted[position]).abs().max() < tolerance(wanted)


def test_sequences_of_a_batch_do_not_touch_each_other(
    model: Qwen3_5MoeForCausalLM, make_batch: Callable[..., Batch], part: Any
) -> None:
    lengths = (70, 1, 130)
    texts = [torch.randint(0, 512, (n + 3,)) for n in lengths]
    wanted = [model(text.unsqueeze(0)).logits[0] for text in texts]
    forward = Forward(model)

    def parts(rows: tuple[int, ...], starts: tuple[int, ...]) -> list[Any]:
        return [
            part(
                rows=n,
                start=start,
                pages=tuple(range(1 + 4 * i, 5 + 4 * i)),
                live=1 + 2 * i,
                shadow=2 + 2 * i,
                token_ids=tuple(text[start : start + n].tolist()),
            )
            for i, (n, start, text) in enumerate(zip(rows, starts, texts, strict=True))
        ]

    batch = make_batch(parts(lengths, (0, 0, 0)), padding=2)
    forward.start(batch)
    got = forward.run(batch, "torch_chunk")
    for segment, logits in zip(batch.segments, wanted, strict=True):
        mine = got[segment.first : segment.first + segment.rows]
        assert (mine - logits[: segment.rows]).abs().max() < tolerance(logits)
    for step in range(3):
        starts = tuple(n + step for n in lengths)
        got = forward.run(make_batch(parts((1, 1, 1), starts), padding=1), "torch_recurrent")
        for row, (start, logits) in enumerate(zip(starts, wanted, strict=True)):
            assert (got[row] - logits[start]).abs().max() < tolerance(logits)


def test_transformers_itself_agrees_in_two_halves(model: Qwen3_5MoeForCausalLM) -> None:
    """The yardstick's own noise, so that a failure above can be told from it."""
    tokens = torch.randint(0, 512, (1, 300))
    whole = model(tokens).logits[0]
    cache = DynamicCache(config=model.config)
    model(tokens[:, :150], cache=cache)
    second = model(tokens[:, 150:], cache=cache).logits[0]
    assert (second - whole[150:]).abs().max() < tolerance(whole)
