"""add_norm and route (or route_sigmoid) in one launch for few rows, on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.route.norm_top_k import norm_route_rows


def add_norm_route(
    batch: DeviceRows,
    *,
    hid: torch.Tensor,
    y: torch.Tensor,
    norm: torch.Tensor,
    h: torch.Tensor,
    router: torch.Tensor,
    ids: torch.Tensor,
    wts: torch.Tensor,
    logits: torch.Tensor,
    arrived: torch.Tensor,
    bias: torch.Tensor | None = None,
    eps: float,
    num_experts_per_token: int,
    experts_at_once: int,
    early: bool,
) -> None:
    """hid[T,H] += y; h[T,H] = rmsnorm(hid) * norm; ids and wts from h as in `route`, or `route_sigmoid` with a bias.

    Rows contiguous, bf16 or fp32; h is not y. Scratch: logits fp32 [T,E]; arrived int32 [T], 0 between launches.
    """
    num_rows, hidden_size = hid.shape
    num_experts = router.shape[0]
    assert (
        hid.is_contiguous() and y.is_contiguous() and h.is_contiguous() and router.is_contiguous()
    )
    norm_route_rows[-(-num_experts // experts_at_once), num_rows](
        hid,
        y,
        norm,
        h,
        router,
        logits if bias is None else bias,
        batch.num_rows,
        logits,
        arrived,
        ids,
        wts,
        eps,
        HIDDEN=hidden_size,
        EXPERTS=num_experts,
        CHOSEN=num_experts_per_token,
        SIGMOID=bias is not None,
        AT_ONCE=experts_at_once,
        EARLY=early,
        num_warps=1,
        **launch_options(early=early),
    )
