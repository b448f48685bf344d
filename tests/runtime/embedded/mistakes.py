"""What people get wrong with these families (facts/models.md 6.3), each as one change of an engine that is right."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import rms_norm

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import rotary
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.gdn import torch_chunk, torch_recurrent
from firmtoken.runtime.kernels.gdn.parts import Shape
from firmtoken.runtime.kernels.route import reference as softmax
from firmtoken.runtime.kernels.route_sigmoid import reference as sigmoid
from firmtoken.runtime.kernels.row_norm_rope_kv import reference as row_norm

HEADS, HEAD_DIM = 4, 64
"""Of full attention in the tiny qwen3_5_moe."""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """How an engine is made wrong."""

    family: str
    name: str
    change: Callable[[Plan], Plan] = lambda plan: plan
    """Before weights are read."""
    weights: tuple[str, Callable[[torch.Tensor], torch.Tensor]] | None = None
    """A row of the plan, and what becomes of its numbers in every layer."""
    patches: tuple[tuple[ModuleType, str, Any], ...] = ()


def with_entry(op: str, entry: Callable[..., None]) -> Callable[[Plan], Plan]:
    """The kernel of an op is another."""

    def change(plan: Plan) -> Plan:
        name = f"{entry.__module__}:{entry.__name__}"
        rows = tuple(replace(row, entry=name) if row.op == op else row for row in plan.kernels)
        assert rows != plan.kernels
        return replace(plan, kernels=rows)

    return change


def with_constant(name: str, value: float) -> Callable[[Plan], Plan]:
    """A constant of all kernels that have it is another."""

    def change(plan: Plan) -> Plan:
        rows = tuple(
            replace(row, constants={**row.constants, name: value}) if name in row.constants else row
            for row in plan.kernels
        )
        assert rows != plan.kernels
        return replace(plan, kernels=rows)

    return change


def gate_and_up_swapped(plan: Plan) -> Plan:
    gate, up, down = plan.experts.sources
    return replace(plan, experts=replace(plan.experts, sources=(up, gate, down)))


def a_and_b_swapped(plan: Plan) -> Plan:
    rows = []
    for weight in plan.weights:
        if weight.name == "in_proj":
            qkv, z, b, a = weight.sources
            weight = replace(weight, sources=(qkv, z, a, b))
        rows.append(weight)
    assert tuple(rows) != plan.weights
    return replace(plan, weights=tuple(rows))


def gates_after_all_queries(qkv: torch.Tensor) -> torch.Tensor:
    """Rows as they lie where a reader takes the first half for q."""
    num_rows = 2 * HEADS * HEAD_DIM
    halves = qkv[:num_rows].view(2, HEADS, HEAD_DIM, -1)
    return torch.cat((halves.transpose(0, 1).reshape(num_rows, -1), qkv[num_rows:]))


def tiled(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    return x.repeat(1, shape.num_value_heads // x.shape[1], 1)


def as_they_come(mixed: torch.Tensor, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    by_head = mixed[:, : 2 * shape.key_columns].view(
        mixed.shape[0], 2, shape.num_key_heads, shape.key_head_dim
    )
    queries, keys = by_head.unbind(1)
    return queries * shape.key_head_dim**-0.5, keys


def no_turn(positions: torch.Tensor, rotary_dim: int, _: float) -> tuple[torch.Tensor, ...]:
    shape = (len(positions), 1, rotary_dim // 2)
    return torch.ones(shape), torch.zeros(shape)


def neighbours(x: torch.Tensor, out: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Columns 2i and 2i + 1 are a pair, not i and i + half."""
    width = 2 * cos.shape[-1]
    left, right = x[..., 0:width:2], x[..., 1:width:2]
    out[..., 0:width:2] = left * cos - right * sin
    out[..., 1:width:2] = right * cos + left * sin


def norm_of_each_head(
    x: torch.Tensor, _: tuple[int], weight: torch.Tensor, eps: float
) -> torch.Tensor:
    by_head = x.reshape(x.shape[0], -1, 32)
    return (rms_norm(by_head, (32,), eps=eps) * weight.view(-1, 32)).view(x.shape)


def unnormalised_softmax(
    batch: Batch, *, h: torch.Tensor, router: torch.Tensor, **rest: Any
) -> None:
    softmax.route(batch, h=h, router=router, **rest)
    shares = torch.softmax(torch.mm(h, router.t()), dim=-1)
    rest["wts"].copy_(shares.gather(1, rest["ids"].clamp(min=0).long()))


def biased_weights(
    batch: Batch, *, h: torch.Tensor, router: torch.Tensor, bias: torch.Tensor, **rest: Any
) -> None:
    sigmoid.route_sigmoid(batch, h=h, router=router, bias=bias, **rest)
    scores = (torch.mm(h, router.t()).sigmoid() + bias).gather(1, rest["ids"].clamp(min=0).long())
    rest["wts"].copy_(scores / scores.sum(dim=-1, keepdim=True))


def unnormalised_sigmoid(
    batch: Batch, *, h: torch.Tensor, router: torch.Tensor, bias: torch.Tensor, **rest: Any
) -> None:
    sigmoid.route_sigmoid(batch, h=h, router=router, bias=bias, **rest)
    scores = torch.mm(h, router.t()).sigmoid()
    rest["wts"].copy_(scores.gather(1, rest["ids"].clamp(min=0).long()))


def qwen3_5(name: str, **how: Any) -> Mistake:
    return Mistake(family="qwen3_5_moe", name=name, **how)


def qwen3(name: str, **how: Any) -> Mistake:
    return Mistake(family="qwen3_moe", name=name, **how)


def minimax(name: str, **how: Any) -> Mistake:
    return Mistake(family="minimax_m2", name=name, **how)


def in_both_forms(attribute: str, replacement: Any) -> tuple[tuple[ModuleType, str, Any], ...]:
    return tuple((module, attribute, replacement) for module in (torch_chunk, torch_recurrent))


NO_ROPE = ((rotary, "_rotation", no_turn),)
NEIGHBOURS = ((rotary, "_rotate", neighbours),)
MISTAKES = (
    qwen3_5("all queries, then all gates", weights=("qkv_proj", gates_after_all_queries)),
    qwen3_5("norm of q by w, not 1 + w", weights=("q_norm", lambda norm: norm - 1)),
    qwen3_5("norms of layers by w, not 1 + w", weights=("in_norm", lambda norm: norm - 1)),
    qwen3_5("taps of the convolution reversed", weights=("conv", lambda conv: conv.flip(1))),
    qwen3_5("key heads tiled", patches=in_both_forms("for_value_heads", tiled)),
    qwen3_5("keys of any length", patches=in_both_forms("unit_queries_keys", as_they_come)),
    qwen3_5("norm of the delta net by 1 + w", weights=("gdn_norm", lambda norm: norm + 1)),
    qwen3_5(
        "weights of experts not renormalised", change=with_entry("route", unnormalised_softmax)
    ),
    qwen3_5("no rotation", patches=NO_ROPE),
    qwen3_5("gate and up swapped", change=gate_and_up_swapped),
    qwen3_5("a and b swapped", change=a_and_b_swapped),
    qwen3_5("neighbours rotated", patches=NEIGHBOURS),
    qwen3_5("shared expert's gate constant", weights=("shared_gate", torch.zeros_like)),
    qwen3("weights of experts not renormalised", change=with_entry("route", unnormalised_softmax)),
    qwen3("eps of another model", change=with_constant("eps", 1e-5)),
    qwen3("norms by 1 + w", weights=("k_norm", lambda norm: norm + 1)),
    qwen3("no rotation", patches=NO_ROPE),
    qwen3("neighbours rotated", patches=NEIGHBOURS),
    qwen3("theta of another model", change=with_constant("rope_theta", 1e4)),
    qwen3("gate and up swapped", change=gate_and_up_swapped),
    minimax("bias in the weights", change=with_entry("route_sigmoid", biased_weights)),
    minimax("no bias in the choice", weights=("router_bias", torch.zeros_like)),
    minimax("weights not renormalised", change=with_entry("route_sigmoid", unnormalised_sigmoid)),
    minimax("all columns rotated", change=with_constant("rotary_dim", 32)),
    minimax("a norm for each head", patches=((row_norm, "rms_norm", norm_of_each_head),)),
    minimax("no rotation", patches=NO_ROPE),
    minimax("neighbours rotated", patches=NEIGHBOURS),
    minimax("w1 and w3 swapped", change=gate_and_up_swapped),
    minimax("eps of another model", change=with_constant("eps", 1e-5)),
)
