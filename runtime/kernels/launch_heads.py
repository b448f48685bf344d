"""Launches `write_heads` on a GPU, for the ops that norm, rotate and write pages."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.head_writes import HeadShape, write_heads


def launch_heads(
    rows: DeviceRows,
    qkv: torch.Tensor,
    q: torch.Tensor,
    kv: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    *,
    eps: float,
    warps: int,
    early: bool,
    shape: HeadShape,
) -> None:
    """One program for each head of each row."""
    coded = kv.dtype == torch.float8_e4m3fn
    keys, values = (kv.view(torch.uint8) if coded else kv).unbind(0)
    assert keys.is_contiguous()
    write_heads[(shape.programs, qkv.shape[0])](
        qkv,
        q,
        keys,
        values,
        q_norm,
        k_norm,
        rows.positions,
        rows.token_slots,
        qkv.stride(0),
        q.stride(0),
        eps,
        **shape.constants(coded=coded, early=early),
        num_warps=warps,
        **launch_options(early=early),
    )
