"""Ops of one or two products, against the formula written out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3_5MoeForCausalLM

from firmtoken.runtime.kernels.batch import Batch

EPS = 1e-6
Launch = Callable[..., Any]
MakeBatch = Callable[..., Batch]
Poisoned = Callable[..., torch.Tensor]


def formula_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight.double()).float()


def test_embed_copies_rows(
    launch: Launch, make_batch: MakeBatch, part: Any, poisoned: Poisoned
) -> None:
    table, hid = torch.randn(9, 16), poisoned(4, 16)
    batch = make_batch([part(rows=3, token_ids=(8, 0, 8))], padding=1)
    launch("embed", batch, table=table, hid=hid)
    assert torch.equal(hid, table[[8, 0, 8, 0]])


@pytest.mark.parametrize("with_y", [True, False])
@pytest.mark.parametrize("with_h", [True, False])
def test_add_norm_in_its_four_forms(
    launch: Launch,
    make_batch: MakeBatch,
    part: Any,
    poisoned: Poisoned,
    with_y: bool,
    with_h: bool,
) -> None:
    hid, y, h = torch.randn(5, 16), torch.randn(5, 16), poisoned(5, 16)
    norm = torch.rand(16) + 0.5
    wanted = hid + y if with_y else hid.clone()
    given = ({"y": y} if with_y else {}) | ({"h": h, "norm": norm} if with_h else {})
    launch("add_norm", make_batch([part(rows=5)]), hid=hid, eps=EPS, **given)
    assert torch.equal(hid, wanted)
    if with_h:
        torch.testing.assert_close(h, formula_norm(wanted, norm), rtol=1e-5, atol=1e-6)
    else:
        assert h.isnan().all()


def test_add_norm_lets_y_and_h_share_bytes_as_its_card_says(
    kernel: Callable[..., Any], make_batch: MakeBatch, part: Any
) -> None:
    hid, shared, norm = torch.randn(5, 16), torch.randn(5, 16), torch.rand(16)
    wanted = formula_norm(hid + shared, norm)
    kernel("add_norm")(make_batch([part(rows=5)]), hid=hid, y=shared, h=shared, norm=norm, eps=EPS)
    torch.testing.assert_close(shared, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_rows", [1, 7])
def test_linear_overwrites_whatever_was_there(
    launch: Launch, make_batch: MakeBatch, part: Any, poisoned: Poisoned, num_rows: int
) -> None:
    x, w, y = torch.randn(num_rows, 16), torch.randn(24, 16), poisoned(num_rows, 24)
    launch("linear", make_batch([part(rows=num_rows)]), x=x, w=w, y=y)
    torch.testing.assert_close(y, (x.double() @ w.double().t()).float())


def test_head_is_a_norm_and_a_product(
    launch: Launch, make_batch: MakeBatch, part: Any, poisoned: Poisoned
) -> None:
    last, norm, w = torch.randn(3, 16), torch.rand(16) + 0.5, torch.randn(40, 16)
    logits = poisoned(3, 40)
    launch("head", make_batch([part(rows=3)]), last=last, norm=norm, w=w, logits=logits, eps=EPS)
    torch.testing.assert_close(logits, formula_norm(last, norm) @ w.t(), rtol=1e-4, atol=1e-5)


def test_route_equals_transformers_and_marks_padding(
    model: Qwen3_5MoeForCausalLM,
    launch: Launch,
    make_batch: MakeBatch,
    part: Any,
    poisoned: Poisoned,
) -> None:
    gate = model.model.layers[0].mlp.gate
    h = torch.randn(20, 128) * 3
    ids, wts = poisoned(20, 2, dtype=torch.int32), poisoned(20, 2)
    launch(
        "route",
        make_batch([part(rows=18)], padding=2),
        h=h,
        router=gate.weight,
        ids=ids,
        wts=wts,
        num_experts_per_token=2,
    )
    _, wanted_wts, wanted_ids = gate(h[:18])
    assert torch.equal(ids[:18].long(), wanted_ids)
    torch.testing.assert_close(wts[:18], wanted_wts)
    assert (ids[18:] == -1).all()
    assert (wts[18:] == 0).all()


@pytest.mark.parametrize("num_rows", [1, 20])
def test_shared_expert_equals_transformers(
    model: Qwen3_5MoeForCausalLM,
    launch: Launch,
    make_batch: MakeBatch,
    part: Any,
    poisoned: Poisoned,
    num_rows: int,
) -> None:
    block = model.model.layers[1].mlp
    h, s = torch.randn(num_rows, 128), poisoned(num_rows, 128)
    shared = block.shared_expert
    launch(
        "shared_expert",
        make_batch([part(rows=num_rows)]),
        h=h,
        gate_up=torch.cat((shared.gate_proj.weight, shared.up_proj.weight)),
        down=shared.down_proj.weight,
        gate=block.shared_expert_gate.weight,
        s=s,
    )
    torch.testing.assert_close(s, block.shared_expert_gate(h).sigmoid() * shared(h))


@pytest.mark.parametrize("with_s", [True, False])
def test_combine_adds_weighted_rows(
    launch: Launch, make_batch: MakeBatch, part: Any, with_s: bool
) -> None:
    rows, wts, hid, s = (
        torch.randn(12, 16),
        torch.rand(4, 3),
        torch.randn(4, 16),
        torch.randn(4, 16),
    )
    wanted = hid + (wts.unsqueeze(-1) * rows.view(4, 3, 16)).sum(1) + (s if with_s else 0)
    given = {"s": s} if with_s else {}
    launch("combine", make_batch([part(rows=4)]), rows=rows, wts=wts, hid=hid, **given)
    torch.testing.assert_close(hid, wanted)
