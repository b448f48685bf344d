"""One norm over all heads, partial rotation and ungated attention, against transformers' attention of MiniMax M2."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import MiniMaxM2Config
from transformers.models.minimax_m2.modeling_minimax_m2 import (
    MiniMaxM2Attention,
    MiniMaxM2RotaryEmbedding,
)

from firmtoken.runtime.kernels.batch import Batch

PAGE, ROWS, H, Q, KV = 16, 40, 128, 6 * 32, 2 * 32
HEADS = {"num_q_heads": 6, "num_kv_heads": 2, "head_dim": 32, "page_size": PAGE}


@pytest.fixture
def config() -> MiniMaxM2Config:
    """The attention of the tiny model of facts/models.md 6.1: 16 of 32 dimensions are rotated."""
    config = MiniMaxM2Config(
        hidden_size=H,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        rope_theta=5e6,
        rotary_dim=16,
    )
    config._attn_implementation = "eager"
    return config


@pytest.mark.parametrize("name", ["torch_blocks", "torch_sdpa"])
def test_a_norm_over_all_heads_and_ungated_attention_equal_transformers(
    name: str,
    config: MiniMaxM2Config,
    launch: Callable[..., Any],
    make_batch: Callable[..., Batch],
    part: Any,
) -> None:
    module = MiniMaxM2Attention(config, layer_idx=0).float().eval()
    for norm in (module.q_norm, module.k_norm):
        norm.weight.add_(0.3 * torch.randn_like(norm.weight))
    x = torch.randn(ROWS, H)
    places = MiniMaxM2RotaryEmbedding(config)(x, torch.arange(ROWS).view(1, -1))
    mask = torch.full((ROWS, ROWS), -torch.inf).triu(1).view(1, 1, ROWS, ROWS)
    wanted = module(x.unsqueeze(0), position_embeddings=places, attention_mask=mask)[0][0]

    qkv = x @ torch.cat([module.q_proj.weight, module.k_proj.weight, module.v_proj.weight]).t()
    q, o = torch.full((ROWS, Q), torch.nan), torch.full((ROWS, Q), torch.nan)
    pages = torch.full((2, 8, PAGE, 2, 32), torch.nan)
    batch = make_batch([part(rows=ROWS, pages=(3, 5, 1))], page_size=PAGE)
    launch(
        "row_norm_rope_kv",
        batch,
        qkv=qkv,
        q=q,
        kv=pages,
        q_norm=module.q_norm.weight,
        k_norm=module.k_norm.weight,
        rotary_dim=16,
        rope_theta=5e6,
        eps=1e-6,
        **HEADS,
    )
    launch("attention", batch, name=name, q=q, kv=pages, o=o, gated=False, scale=32**-0.5, **HEADS)
    torch.testing.assert_close(o @ module.o_proj.weight.t(), wanted, rtol=1e-4, atol=1e-5)
