"""head with NVFP4 weights, launched on a GPU: the norm is part of the product, which reads all of `last` anyway."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.triton_nvfp4 import multiply
from firmtoken.runtime.kernels.matrices import PackedMatrix


def head(
    rows: DeviceRows | None,
    *,
    last: torch.Tensor,
    norm: torch.Tensor,
    w: PackedMatrix,
    logits: torch.Tensor,
    eps: float,
    few: int,
    outputs: int,
    unroll: int,
    tile_outputs: int,
    early: bool,
) -> None:
    """logits[S,V] = rmsnorm(last[S,H]) * norm[H] times w[V,H]^T; last bf16, norm fp32."""
    multiply(
        last,
        w,
        norm,
        logits,
        normed=True,
        eps=eps,
        few=few,
        outputs=outputs,
        unroll=unroll,
        tile_outputs=tile_outputs,
        early=early,
    )
