"""route for few rows, launched on a GPU."""

import torch

from firmtoken.compiler.tensor_bytes import align_up
from firmtoken.compiler.workspaces import ARRAY_ALIGN
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.route.top_k import route_rows


def route(
    batch: DeviceRows,
    *,
    h: torch.Tensor,
    router: torch.Tensor,
    ids: torch.Tensor,
    wts: torch.Tensor,
    workspace: torch.Tensor,
    num_experts_per_token: int,
    experts_at_once: int,
    early: bool,
) -> None:
    """ids[T,k] int32 and wts[T,k] fp32 of the best experts; h and router bf16 or fp32.

    `workspace`: whole 16 bytes, at least T (E + 1) numbers of 4; the first T are 0 between launches.
    """
    launch_route(
        batch,
        h,
        router,
        None,
        ids,
        wts,
        workspace,
        chosen=num_experts_per_token,
        experts_at_once=experts_at_once,
        early=early,
    )


def launch_route(
    batch: DeviceRows,
    h: torch.Tensor,
    router: torch.Tensor,
    bias: torch.Tensor | None,
    ids: torch.Tensor,
    wts: torch.Tensor,
    workspace: torch.Tensor,
    *,
    chosen: int,
    experts_at_once: int,
    early: bool,
) -> None:
    """By sigmoids where there is a bias (fp32 [E]), else by softmax."""
    num_rows, hidden_size = h.shape
    num_experts = router.shape[0]
    arrived = workspace.view(torch.int32)
    # From the end, so that batches of every size find their arrivals at the same place.
    words = align_up(num_rows * num_experts * 4, ARRAY_ALIGN) // 4
    logits = workspace.view(torch.float32)[-words:]
    assert arrived.numel() >= words + num_rows
    assert h.is_contiguous() and router.is_contiguous() and chosen <= num_experts
    route_rows[-(-num_experts // experts_at_once), num_rows](
        h,
        router,
        logits if bias is None else bias,
        batch.num_rows,
        logits,
        arrived,
        ids,
        wts,
        HIDDEN=hidden_size,
        EXPERTS=num_experts,
        CHOSEN=chosen,
        SIGMOID=bias is not None,
        AT_ONCE=experts_at_once,
        EARLY=early,
        num_warps=1,
        **launch_options(early=early),
    )
