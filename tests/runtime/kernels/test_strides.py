"""A kernel reads a view by its strides or refuses it: what contiguous operands give, or an error, never a guess."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.batch import Batch, Draw
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots, make_arena

H, V, ROWS, K, WIDTH, EXPERTS, PAGE, SLOTS, POSITIONS = 32, 40, 5, 2, 16, 8, 16, 7, 11
CHANNELS = 2 * 2 * 16 + 4 * 8
QKV, KV = (2 * 4 + 2 * 2) * 16, (2, SLOTS, PAGE, 2, 16)
STATES = {"conv_state": (SLOTS, CHANNELS, 3), "recurrent_state": (SLOTS, 4, 16, 8)}
SNAPS = (3, CHANNELS * 3 + 4 * 16 * 8)
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "embed": {"table": (9, H), "hid": (ROWS, H)},
    "add_norm": {"hid": (ROWS, H), "y": (ROWS, H), "h": (ROWS, H), "norm": (H,)},
    "linear": {"x": (ROWS, H), "w": (24, H), "y": (ROWS, 24)},
    "qk_norm_rope_kv": {
        "qkv": (ROWS, QKV),
        "q": (ROWS, 64),
        "kv": KV,
        "q_norm": (16,),
        "k_norm": (16,),
    },
    "row_norm_rope_kv": {
        "qkv": (ROWS, (4 + 2 * 2) * 16),
        "q": (ROWS, 64),
        "kv": KV,
        "q_norm": (64,),
        "k_norm": (32,),
    },
    "attention": {"q": (ROWS, 64), "qkv": (ROWS, QKV), "kv": KV, "o": (ROWS, 64)},
    "gdn": {
        "u": (ROWS, CHANNELS + 32 + 8),
        **STATES,
        "o": (ROWS, 32),
        "conv": (CHANNELS, 4),
        "a_log": (4,),
        "dt_bias": (4,),
        "norm": (8,),
    },
    "route": {"h": (ROWS, H), "router": (EXPERTS, H), "ids": (ROWS, K), "wts": (ROWS, K)},
    "route_sigmoid": {
        "h": (ROWS, H),
        "router": (EXPERTS, H),
        "bias": (EXPERTS,),
        "ids": (ROWS, K),
        "wts": (ROWS, K),
    },
    "prescribe": {"ids": (ROWS, K), "routes": (POSITIONS, K)},
    "moe_gate_up": {"x": (ROWS, H), "ids": (ROWS, K), "a": (ROWS * K, WIDTH)},
    "moe_down": {"a": (ROWS * K, WIDTH), "ids": (ROWS, K), "rows": (ROWS * K, H)},
    "shared_expert": {
        "h": (ROWS, H),
        "gate_up": (2 * WIDTH, H),
        "down": (H, WIDTH),
        "gate": (1, H),
        "s": (ROWS, H),
    },
    "combine": {"rows": (ROWS * K, H), "wts": (ROWS, K), "hid": (ROWS, H), "s": (ROWS, H)},
    "snapshot": {**STATES, "snaps": SNAPS},
    "restore": {**STATES, "snaps": SNAPS},
    "copy": {"source": (6, H), "target": (6, H)},
    "head": {"last": (ROWS, H), "norm": (H,), "w": (V, H), "logits": (ROWS, V)},
    "sample": {"logits": (ROWS, V), "tokens": (ROWS,)},
}
"""Every operand that is a tensor of numbers, by op."""
WITHOUT = {"mark", "resolve", "admit", "fetch"}
"""Their tensors are tables of slots, one entry an expert; what `fetch` moves are whole slots."""
UNGATED = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "page_size": PAGE}
HEADS = UNGATED | {"gated": True}
ROTATED = {"rotary_dim": 8, "rope_theta": 1e4, "eps": 1e-6}
EXPERT = {"hidden_size": H, "expert_width": WIDTH, "num_experts_per_token": K}
CONSTANTS: dict[str, dict[str, Any]] = {
    "add_norm": {"eps": 1e-6},
    "qk_norm_rope_kv": HEADS | ROTATED,
    "row_norm_rope_kv": UNGATED | ROTATED,
    "attention": HEADS | {"scale": 0.25},
    "gdn": {
        "num_key_heads": 2,
        "num_value_heads": 4,
        "key_head_dim": 16,
        "value_head_dim": 8,
        "conv_kernel": 4,
        "eps": 1e-6,
    },
    "route": {"num_experts_per_token": K},
    "route_sigmoid": {"num_experts_per_token": K},
    "prescribe": {"conversation": 3},
    "moe_gate_up": EXPERT,
    "moe_down": EXPERT,
    "head": {"eps": 1e-6},
}
INTEGERS = {"ids": torch.int32, "routes": torch.int32, "tokens": torch.int64}
CPU = [card for card in CARDS if "cpu" in card.devices and card.op not in WITHOUT]
WILD = 12_345


def apart(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with a gap behind each."""
    around = torch.full((*x.shape[:-1], x.shape[-1] + 3), WILD, dtype=x.dtype)
    return around, around[..., 1:-2]


def spread(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every second element."""
    around = torch.full((*x.shape[:-1], 2 * x.shape[-1]), WILD, dtype=x.dtype)
    return around, around[..., ::2]


def turned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Transposed: the features of a row lie a column apart."""
    around = torch.full((*x.shape[:-2], *x.shape[-2:][::-1]), WILD, dtype=x.dtype)
    return around, around.transpose(-1, -2) if x.dim() > 1 else around


def draw_operands(op: str) -> dict[str, torch.Tensor]:
    drawn: dict[str, torch.Tensor] = {}
    for name, shape in SHAPES[op].items():
        drawn[name] = torch.randn(shape) * 0.5
        if name in INTEGERS:
            drawn[name] = torch.randint(0, EXPERTS, shape, dtype=INTEGERS[name])
    return drawn


def draw_experts(format_name: str) -> ExpertSlots:
    parts = slot_parts(format_name, H, WIDTH)
    arena: ExpertArena = make_arena(
        torch.zeros(EXPERTS, slot_bytes(parts), dtype=torch.uint8), parts
    )
    for name, part in arena.parts.items():
        if part.dtype == torch.uint8:
            part.copy_(torch.randint(0, 256, part.shape))
        elif name in ("gate", "up", "down", "globals") or name.endswith("_scale"):
            part.copy_((torch.rand(part.shape) - (part.dtype == torch.float32) / 2).to(part.dtype))
    return ExpertSlots(first=0, count=EXPERTS, arena=arena)


def batches(op: str, make_batch: Callable[..., Batch], part: Any) -> list[Batch]:
    """One sequence of all rows; one sequence a row."""
    more: dict[str, Any] = {
        "draws": (
            Draw(temperature=0.7, top_p=0.9, top_k=5, min_p=0.0, seed=3, position=9),
            Draw(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=3, position=9),
        ),
        "copies": ((4, 0), (1, 2)),
        "moves": {"snapshot": ((2, 1), (0, 2)), "restore": ((1, 3, 5), (-1, 2, 4))}.get(op, ()),
        "page_size": PAGE,
    }
    ids = tuple(range(ROWS))
    one = [part(rows=ROWS, start=2, pages=(3,), live=1, shadow=2, boundary=3, token_ids=ids)]
    each = [part(rows=1, start=3, pages=(at + 1,), live=at + 1, shadow=0) for at in range(ROWS)]
    return [make_batch(one, **more), make_batch(each, **more)]


@pytest.mark.report(63)
@pytest.mark.parametrize("arrange", [apart, spread, turned])
@pytest.mark.parametrize("card", CPU, ids=lambda card: f"{card.op}-{card.name}")
def test_a_strided_operand_gives_what_a_contiguous_one_gives_or_is_refused(
    card: Any,
    arrange: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    kernel: Callable[..., Any],
    make_batch: Callable[..., Batch],
    part: Any,
) -> None:
    run, constants = kernel(card.op, card.name), dict(CONSTANTS.get(card.op, {}))
    if card.op.startswith("moe_"):
        constants["experts"] = draw_experts("nvfp4" if "nvfp4" in card.name else "fp32")
    drawn = draw_operands(card.op)
    for batch in batches(card.op, make_batch, part):
        wanted = {name: tensor.clone() for name, tensor in drawn.items()}
        run(batch, **wanted, **constants)
        for strided in drawn:
            given = {name: tensor.clone() for name, tensor in drawn.items()}
            around, view = arrange(given[strided])
            view.copy_(given[strided])
            try:
                run(batch, **{**given, strided: view}, **constants)
            except (RuntimeError, AssertionError):
                continue
            given[strided] = view.clone()
            for name, found in given.items():
                torch.testing.assert_close(
                    found, wanted[name], rtol=1e-5, atol=1e-6, msg=f"`{name}` beside `{strided}`"
                )
            view.fill_(WILD)
            assert (around == WILD).all(), f"`{strided}` was written outside its view"


def test_no_kernel_of_the_cpu_is_left_out() -> None:
    ops = {card.op for card in CARDS if "cpu" in card.devices}
    assert ops == SHAPES.keys() | WITHOUT
