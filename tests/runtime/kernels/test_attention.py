"""Query and key preparation and paged attention, against transformers' attention layer and against each other."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3_5MoeForCausalLM
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import apply_rotary_pos_emb

from firmtoken.runtime.kernels.batch import Batch

PAGE = 16
HEADS = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 64, "gated": True, "page_size": PAGE}
NAMES = ("torch_blocks", "torch_sdpa")
Launch = Callable[..., Any]
MakeBatch = Callable[..., Batch]


class Layer:
    """Layer 3 of the model over its own pages, which start as NaN."""

    def __init__(self, model: Qwen3_5MoeForCausalLM, launch: Launch) -> None:
        self.model, self.launch = model, launch
        self.module = module = model.model.layers[3].self_attn
        self.w = torch.cat([module.q_proj.weight, module.k_proj.weight, module.v_proj.weight])
        self.kv = torch.full((2, 60, PAGE, 2, 64), torch.nan)

    def run(self, batch: Batch, x: torch.Tensor, name: str) -> torch.Tensor:
        qkv = x @ self.w.t()
        q, o = torch.full((len(x), 256), torch.nan), torch.full((len(x), 256), torch.nan)
        self.launch(
            "qk_norm_rope_kv",
            batch,
            qkv=qkv,
            q=q,
            kv=self.kv,
            q_norm=1 + self.module.q_norm.weight,
            k_norm=1 + self.module.k_norm.weight,
            rotary_dim=16,
            rope_theta=1e7,
            eps=1e-6,
            **HEADS,
        )
        self.q = q
        self.launch(
            "attention", batch, name=name, q=q, qkv=qkv, kv=self.kv, o=o, scale=0.125, **HEADS
        )
        return o @ self.module.o_proj.weight.t()

    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        places = self.model.model.rotary_emb(x, torch.arange(rows).view(1, 1, -1).expand(3, 1, -1))
        mask = torch.full((rows, rows), -torch.inf).triu(1).view(1, 1, rows, rows)
        return self.module(x.unsqueeze(0), position_embeddings=places, attention_mask=mask)[0][0]


@pytest.fixture
def layer(model: Qwen3_5MoeForCausalLM, launch: Launch) -> Layer:
    return Layer(model, launch)


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 65, 200])
def test_the_layer_equals_transformers_and_writes_only_its_token_slots(
    layer: Layer, make_batch: MakeBatch, part: Any, name: str, length: int
) -> None:
    x = torch.randn(length, 128)
    pages = tuple(range(40, 40 - 13, -1))
    batch = make_batch([part(rows=length, pages=pages)], page_size=PAGE)
    close(layer.run(batch, x, name), layer.wanted(x))
    tokens = layer.kv.view(2, -1, 2, 64)
    mine = torch.zeros(60 * PAGE, dtype=torch.bool)
    mine[batch.token_slots] = True
    assert tokens[:, mine].isfinite().all()
    assert tokens[:, ~mine].isnan().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_in_pieces_beside_another_equals_the_whole(
    layer: Layer, make_batch: MakeBatch, part: Any, name: str
) -> None:
    x, other = torch.randn(170, 128), torch.randn(170, 128)
    wanted, wanted_other = layer.wanted(x), layer.wanted(other)
    pages, other_pages = tuple(range(1, 13)), tuple(range(40, 28, -1))
    got, got_other = [], []
    for start, end in ((0, 1), (1, 70), (70, 71), (71, 169), (169, 170)):
        other_start, other_end = 170 - end, 170 - start
        # The other sequence's keys of earlier positions must exist, so it is whole in every launch.
        parts = [
            part(rows=end - start, start=start, pages=pages),
            part(rows=other_end, start=0, pages=other_pages),
        ]
        batch = make_batch(parts, padding=2, page_size=PAGE)
        rows = torch.cat((x[start:end], other[:other_end], torch.randn(2, 128)))
        out = layer.run(batch, rows, name)
        got.append(out[: end - start])
        got_other.append(out[end - start : -2][other_start:])
        assert not out[-2:].any()
    close(torch.cat(got), wanted)
    close(torch.cat(got_other[::-1]), wanted_other)


def test_rotation_follows_the_position_and_equals_transformers(
    layer: Layer, make_batch: MakeBatch, part: Any
) -> None:
    start = 30_000
    x = torch.randn(3, 128)
    batch = make_batch([part(rows=3, start=start, pages=(1,) * 1900)], page_size=PAGE)
    layer.kv.zero_()
    layer.run(batch, x, "torch_blocks")
    places = (torch.arange(3) + start).view(1, 1, -1).expand(3, 1, -1)
    cos, sin = layer.model.model.rotary_emb(x, places)
    projected = layer.module.q_proj(x).view(1, 3, 4, 128)[..., :64]
    queries = layer.module.q_norm(projected).transpose(1, 2)
    wanted, _ = apply_rotary_pos_emb(queries, queries, cos, sin)
    close(layer.q.view(3, 4, 64), wanted[0].transpose(0, 1))


@pytest.mark.parametrize("name", NAMES)
def test_without_gate_and_without_groups(
    launch: Launch, make_batch: MakeBatch, part: Any, poisoned: Callable[..., Any], name: str
) -> None:
    heads = {"num_q_heads": 2, "num_kv_heads": 2, "head_dim": 8, "gated": False, "page_size": 4}
    batch = make_batch([part(rows=6, pages=(2, 1))], page_size=4)
    qkv, q, o, kv = torch.randn(6, 48), poisoned(6, 16), poisoned(6, 16), torch.zeros(2, 3, 4, 2, 8)
    norm = torch.ones(8)
    launch(
        "qk_norm_rope_kv",
        batch,
        qkv=qkv,
        q=q,
        kv=kv,
        q_norm=norm,
        k_norm=norm,
        rotary_dim=8,
        rope_theta=1e4,
        eps=1e-6,
        **heads,
    )
    launch("attention", batch, name=name, q=q, qkv=qkv, kv=kv, o=o, scale=0.5, **heads)
    keys, values = kv[:, [2, 1]].flatten(1, 2)[:, :6].transpose(1, 2)
    scores = q.view(6, 2, 8).transpose(0, 1) @ keys.transpose(1, 2) * 0.5
    scores += torch.full((6, 6), -torch.inf).triu(1)
    close(o, (scores.softmax(-1) @ values).transpose(0, 1).reshape(6, 16))
    assert torch.equal(values, qkv[:, 32:].view(6, 2, 8).transpose(0, 1))
