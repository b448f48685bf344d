"""Sigmoid routing against transformers' router of MiniMax M2."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import MiniMaxM2Config
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter

from firmtoken.runtime.kernels.batch import Batch

EXPERTS, K, H = 16, 4, 32
ROUTER = MiniMaxM2Config(hidden_size=H, num_local_experts=EXPERTS, num_experts_per_tok=K)


def routed(
    launch: Callable[..., Any], batch: Batch, rows: int, router: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    h = torch.randn(rows, H)
    ids, wts = torch.full((rows, K), 12_345, dtype=torch.int32), torch.full((rows, K), torch.nan)
    launch(
        "route_sigmoid",
        batch,
        h=h,
        router=router,
        bias=bias,
        ids=ids,
        wts=wts,
        num_experts_per_token=K,
    )
    return h, ids.long(), wts


def test_sigmoid_routing_equals_transformers_and_marks_padding(
    launch: Callable[..., Any], make_batch: Callable[..., Batch], part: Any
) -> None:
    router = MiniMaxM2TopKRouter(ROUTER)
    router.weight.normal_(std=0.3)
    bias = torch.randn(EXPERTS) * 0.3
    h, ids, wts = routed(launch, make_batch([part(rows=18)], padding=2), 20, router.weight, bias)
    _, wanted_wts, wanted_ids = router(h[:18], bias)
    order, wanted_order = (
        ids[:18].argsort(),
        wanted_ids.argsort(),
    )  # transformers leaves them unsorted
    assert torch.equal(ids[:18].gather(1, order), wanted_ids.gather(1, wanted_order))
    torch.testing.assert_close(wts[:18].gather(1, order), wanted_wts.gather(1, wanted_order))
    assert (ids[18:] == -1).all()
    assert (wts[18:] == 0).all()


def test_the_bias_chooses_and_does_not_weigh(
    launch: Callable[..., Any], make_batch: Callable[..., Batch], part: Any
) -> None:
    bias = torch.zeros(EXPERTS)
    bias[5] = 10.0
    equal = torch.zeros(EXPERTS, H)
    _, ids, wts = routed(launch, make_batch([part(rows=3)]), 3, equal, bias)
    assert (ids[:, 0] == 5).all()
    torch.testing.assert_close(wts, torch.full((3, K), 1 / K))
