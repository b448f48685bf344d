"""route for many rows, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.route.tile_top_k import route_tile, tile_constants


def route(
    batch: DeviceRows,
    *,
    h: torch.Tensor,
    router: torch.Tensor,
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
        None,
        ids,
        wts,
        chosen=num_experts_per_token,
        rows=rows,
        block=block,
        warps=warps,
        stages=stages,
    )


def launch_tiles(
    batch: DeviceRows,
    h: torch.Tensor,
    router: torch.Tensor,
    bias: torch.Tensor | None,
    ids: torch.Tensor,
    wts: torch.Tensor,
    *,
    chosen: int,
    rows: int,
    block: int,
    warps: int,
    stages: int,
) -> None:
    """By sigmoids where there is a bias (fp32 [E]), else by softmax."""
    num_rows, hidden_size = h.shape
    num_experts = router.shape[0]
    assert h.is_contiguous() and router.is_contiguous() and chosen <= num_experts
    route_tile[-(-num_rows // rows),](
        h,
        router,
        wts if bias is None else bias,
        batch.num_rows,
        ids,
        wts,
        num_rows,
        **tile_constants(
            hidden_size=hidden_size,
            num_experts=num_experts,
            num_experts_per_token=chosen,
            sigmoid=bias is not None,
            rows=rows,
            block=block,
            stages=stages,
        ),
        num_warps=warps,
    )
