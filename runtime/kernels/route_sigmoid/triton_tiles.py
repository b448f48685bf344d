"""route_sigmoid for many rows, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.route.triton_tiles import launch_tiles


def route_sigmoid(
    batch: DeviceRows,
    *,
    h: torch.Tensor,
    router: torch.Tensor,
    bias: torch.Tensor,
    ids: torch.Tensor,
    wts: torch.Tensor,
    num_experts_per_token: int,
    rows: int,
    block: int,
    warps: int,
    stages: int,
) -> None:
    """ids[T,k] int32 and wts[T,k] fp32 of the best experts; h and router bf16 or fp32, `rows` of them a program."""
    launch_tiles(
        batch,
        h,
        router,
        bias,
        ids,
        wts,
        chosen=num_experts_per_token,
        rows=rows,
        block=block,
        warps=warps,
        stages=stages,
    )
