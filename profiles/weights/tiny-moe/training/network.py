"""The training pass of qwen3_5_moe over the parameters of transformers' model, made for torch.compile."""

from __future__ import annotations

from collections.abc import Callable

import layout
import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK = 32
HEAD = layout.TEXT_CONFIG["head_dim"]
QUERY_HEADS = layout.TEXT_CONFIG["num_attention_heads"]
KEY_HEADS = layout.TEXT_CONFIG["linear_num_key_heads"]
VALUE_HEADS = layout.TEXT_CONFIG["linear_num_value_heads"]
GDN_HEAD = layout.TEXT_CONFIG["linear_key_head_dim"]
TOP_K = layout.TEXT_CONFIG["num_experts_per_tok"]
ROTARY = 16
EPSILON = 1e-6

Weights = dict[str, Tensor]
LayerPass = Callable[[Tensor, Tensor, Weights], tuple[Tensor, Tensor]]


class Network:
    """Loss of a batch of rows; `compiled` trades start time for speed."""

    def __init__(self, model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        self._layers: list[Weights] = [
            {
                name.removeprefix(f"model.layers.{index}."): value
                for name, value in parameters.items()
                if name.startswith(f"model.layers.{index}.")
            }
            for index in range(layout.LAYERS)
        ]
        self._embedding = parameters["model.embed_tokens.weight"]
        self._norm = parameters["model.norm.weight"]
        self._head = parameters["lm_head.weight"]
        self._passes: dict[str, LayerPass] = {
            "linear_attention": linear_layer,
            "full_attention": full_layer,
        }
        self._compiled = {
            kind: torch.compile(function, dynamic=False, fullgraph=True)
            for kind, function in self._passes.items()
        }
        self._compiled_loss = torch.compile(head_loss, dynamic=False, fullgraph=True)

    def loss(self, ids: Tensor, counted: Tensor, *, compiled: bool) -> tuple[Tensor, Tensor]:
        """Mean loss of the tokens that `counted` marks, and the imbalance of the experts."""
        hidden, imbalance = self._run(ids, self._compiled if compiled else self._passes)
        head = self._compiled_loss if compiled else head_loss
        return head(hidden, self._norm, self._head, ids, counted), imbalance

    def logits(self, ids: Tensor) -> Tensor:
        hidden, _ = self._run(ids, self._passes)
        return functional.linear(rms_norm(hidden, 1.0 + self._norm.float()), self._head)

    def _run(self, ids: Tensor, passes: dict[str, LayerPass]) -> tuple[Tensor, Tensor]:
        hidden = functional.embedding(ids, self._embedding)
        valid = ids != layout.TEXT_CONFIG["eos_token_id"]
        imbalance = hidden.new_zeros((), dtype=torch.float32)
        for kind, weights in zip(layout.LAYER_TYPES, self._layers, strict=True):
            hidden, uneven = passes[kind](hidden, valid, weights)
            imbalance = imbalance + uneven / layout.LAYERS
        return hidden, imbalance


def linear_layer(hidden: Tensor, valid: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    normed = rms_norm(hidden, 1.0 + weights["input_layernorm.weight"].float())
    return _experts_block(hidden + gated_delta_net(normed, weights), valid, weights)


def full_layer(hidden: Tensor, valid: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    normed = rms_norm(hidden, 1.0 + weights["input_layernorm.weight"].float())
    return _experts_block(hidden + attention(normed, weights), valid, weights)


def head_loss(hidden: Tensor, norm: Tensor, head: Tensor, ids: Tensor, counted: Tensor) -> Tensor:
    logits = functional.linear(rms_norm(hidden, 1.0 + norm.float()), head)
    targets = torch.where(counted[:, 1:], ids[:, 1:], -100)
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), targets.flatten())


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON) * weight).to(x.dtype)


def attention(x: Tensor, weights: Weights) -> Tensor:
    batch, length, _ = x.shape
    query, gate = (
        functional.linear(x, weights["self_attn.q_proj.weight"])
        .view(batch, length, QUERY_HEADS, 2 * HEAD)
        .chunk(2, dim=-1)
    )
    key = functional.linear(x, weights["self_attn.k_proj.weight"]).view(batch, length, -1, HEAD)
    value = functional.linear(x, weights["self_attn.v_proj.weight"]).view(batch, length, -1, HEAD)
    query = _rotate(rms_norm(query, 1.0 + weights["self_attn.q_norm.weight"].float()))
    key = _rotate(rms_norm(key, 1.0 + weights["self_attn.k_norm.weight"].float()))
    repeats = QUERY_HEADS // key.shape[2]
    key, value = (part.repeat_interleave(repeats, dim=2) for part in (key, value))
    out = functional.scaled_dot_product_attention(
        *(part.transpose(1, 2) for part in (query, key, value)), is_causal=True
    ).transpose(1, 2)
    out = (out * torch.sigmoid(gate)).reshape(batch, length, -1)
    return functional.linear(out, weights["self_attn.o_proj.weight"])


def _rotate(x: Tensor) -> Tensor:  # [B, L, heads, HEAD]
    steps = torch.arange(0, ROTARY, 2, device=x.device, dtype=torch.float32)
    frequency = layout.TEXT_CONFIG["rope_parameters"]["rope_theta"] ** (-steps / ROTARY)
    angle = torch.arange(x.shape[1], device=x.device)[:, None] * frequency  # [L, 8]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    left, right, rest = x.float().split((ROTARY // 2, ROTARY // 2, HEAD - ROTARY), dim=-1)
    turned = (left * cos - right * sin, right * cos + left * sin, rest)
    return torch.cat(turned, dim=-1).to(x.dtype)


def gated_delta_net(x: Tensor, weights: Weights) -> Tensor:
    length = x.shape[1]
    mixed = functional.linear(x, weights["linear_attn.in_proj_qkv.weight"])
    padded = functional.pad(mixed.float(), (0, 0, 3, 0))
    taps = weights["linear_attn.conv1d.weight"].float()[:, 0]  # [channels, 4]
    mixed = sum(padded[:, tap : tap + length] * taps[:, tap] for tap in range(4))
    mixed = functional.silu(mixed)
    width = KEY_HEADS * GDN_HEAD
    query, key, value = mixed.split((width, width, 2 * width), dim=-1)
    repeats = VALUE_HEADS // KEY_HEADS
    query, key = (
        _unit(part.unflatten(-1, (KEY_HEADS, GDN_HEAD))).repeat_interleave(repeats, dim=2)
        for part in (query, key)
    )
    beta = functional.linear(x, weights["linear_attn.in_proj_b.weight"]).float().sigmoid()
    step = functional.linear(x, weights["linear_attn.in_proj_a.weight"]).float()
    step = functional.softplus(step + weights["linear_attn.dt_bias"].float())
    decay = -weights["linear_attn.A_log"].float().exp() * step
    out = delta_rule(
        query * GDN_HEAD**-0.5, key, value.unflatten(-1, (VALUE_HEADS, GDN_HEAD)), beta, decay
    )
    gate = functional.linear(x, weights["linear_attn.in_proj_z.weight"]).float()
    normed = rms_norm(out, weights["linear_attn.norm.weight"].float())
    out = (normed.flatten(-2) * functional.silu(gate)).to(x.dtype)
    return functional.linear(out, weights["linear_attn.out_proj.weight"])


def delta_rule(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, decay: Tensor) -> Tensor:
    """The chunked recurrence in float32; the length is a multiple of `CHUNK`."""
    query, key, value = (  # [B, heads, chunks, C, d]
        part.transpose(1, 2).unflatten(2, (-1, CHUNK)) for part in (query, key, value)
    )
    beta, decay = (part.transpose(1, 2).unflatten(2, (-1, CHUNK)) for part in (beta, decay))
    total = decay.cumsum(-1)
    rows = torch.arange(CHUNK, device=query.device)
    lower = rows[:, None] >= rows[None, :]
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    system = (key * beta[..., None]) @ key.transpose(-1, -2) * between
    inverse = _inverse(system, rows)
    scaled = inverse * beta[..., None, :]
    new_value = scaled @ value
    from_state = scaled @ (key * total.exp()[..., None])
    inside = query @ key.transpose(-1, -2) * between
    query = query * total.exp()[..., None]
    key = key * (total[..., -1:] - total).exp()[..., None]
    kept = total[..., -1].exp()[..., None, None]
    state = torch.zeros_like(key[:, :, 0].transpose(-1, -2) @ value[:, :, 0])
    parts = []
    for chunk in range(query.shape[2]):
        fresh = new_value[:, :, chunk] - from_state[:, :, chunk] @ state
        parts.append(query[:, :, chunk] @ state + inside[:, :, chunk] @ fresh)
        state = state * kept[:, :, chunk] + key[:, :, chunk].transpose(-1, -2) @ fresh
    return torch.cat(parts, dim=2).transpose(1, 2)  # [B, L, heads, d]


def _inverse(system: Tensor, rows: Tensor) -> Tensor:
    """Of the unit lower triangle of `system`, doubling the solved blocks: as stable as substitution."""
    inverse = torch.eye(CHUNK, device=system.device).expand_as(system)
    size = 1
    while size < CHUNK:
        block = rows // size
        below = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        inverse = inverse - inverse @ (system * below) @ inverse
        size *= 2
    return inverse


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def _experts_block(hidden: Tensor, valid: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    normed = rms_norm(hidden, 1.0 + weights["post_attention_layernorm.weight"].float())
    flat = normed.flatten(0, 1)
    odds = functional.linear(flat, weights["mlp.gate.weight"]).float().softmax(-1)
    share, chosen = odds.topk(TOP_K, dim=-1)
    share = (share / share.sum(-1, keepdim=True)).to(flat.dtype)
    order = chosen.flatten().argsort(stable=True)
    counts = functional.one_hot(chosen.flatten(), layout.EXPERTS).sum(0)
    states = _Scatter.apply(flat, order)
    ends = counts.cumsum(0).to(torch.int32)
    inner = grouped_linear(states, weights["mlp.experts.gate_up_proj"], ends)
    gate, up = inner.chunk(2, dim=-1)
    outer = grouped_linear(functional.silu(gate) * up, weights["mlp.experts.down_proj"], ends)
    routed = _Combine.apply(outer, share, order)
    shared = functional.linear(flat, weights["mlp.shared_expert.gate_proj.weight"])
    shared = functional.silu(shared) * functional.linear(
        flat, weights["mlp.shared_expert.up_proj.weight"]
    )
    shared = functional.linear(shared, weights["mlp.shared_expert.down_proj.weight"])
    open_ = torch.sigmoid(functional.linear(flat, weights["mlp.shared_expert_gate.weight"]))
    out = hidden + (routed + open_ * shared).view_as(hidden)
    return out, _imbalance(odds, chosen, valid.flatten())


def _imbalance(odds: Tensor, chosen: Tensor, valid: Tensor) -> Tensor:
    """1 when all experts are used alike."""
    weight = valid.float() / valid.sum().clamp(min=1)
    used = (functional.one_hot(chosen, layout.EXPERTS).sum(1) * weight[:, None]).sum(0) / TOP_K
    return layout.EXPERTS * (used * (odds * weight[:, None]).sum(0)).sum()


def grouped_linear(states: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    if states.is_cuda:
        return torch._grouped_mm(states, weight.transpose(-1, -2), offs=ends)
    starts = [0, *ends.tolist()]
    return torch.cat(
        [
            functional.linear(states[begin:end], matrix)
            for matrix, begin, end in zip(weight, starts, starts[1:], strict=False)
        ]
    )


class _Scatter(torch.autograd.Function):
    """Token states in expert order; its gradient is a gather, not a scattered sum."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, flat: Tensor, order: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return flat[order // TOP_K]

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        (order,) = ctx.saved_tensors
        return grad[_undo(order)].reshape(-1, TOP_K, grad.shape[-1]).sum(1), None


class _Combine(torch.autograd.Function):
    """Weighted sum of each token's experts, back in token order."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, outer: Tensor, share: Tensor, order: Tensor
    ) -> Tensor:
        ctx.save_for_backward(outer, share, order)
        return (outer[_undo(order)].reshape(*share.shape, -1) * share[..., None]).sum(1)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, grad: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        outer, share, order = ctx.saved_tensors
        to_outer = grad[order // TOP_K] * share.flatten()[order][:, None]
        by_token = outer[_undo(order)].reshape(*share.shape, -1)
        return to_outer, (by_token * grad[:, None]).sum(-1), None


def _undo(order: Tensor) -> Tensor:
    places = torch.arange(order.shape[0], device=order.device)
    return torch.empty_like(order).scatter_(0, order, places)
