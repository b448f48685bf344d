"""route_sigmoid for few rows, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.route.triton_top_k import launch_route


def route_sigmoid(
    batch: DeviceRows,
    *,
    h: torch.Tensor,
    router: torch.Tensor,
    bias: torch.Tensor,
    ids: torch.Tensor,
    wts: torch.Tensor,
    workspace: torch.Tensor,
    num_experts_per_token: int,
    experts_at_once: int,
    early: bool,
) -> None:
    """ids[T,k] int32 and wts[T,k] fp32 of the best experts; h and router bf16 or fp32, scratch as in `route`."""
    launch_route(
        batch,
        h,
        router,
        bias,
        ids,
        wts,
        workspace,
        chosen=num_experts_per_token,
        experts_at_once=experts_at_once,
        early=early,
    )
