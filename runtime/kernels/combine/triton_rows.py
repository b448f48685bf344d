"""combine, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.combine.rows import combine_row
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options


def combine(
    batch: DeviceRows | None,
    *,
    rows: torch.Tensor,
    wts: torch.Tensor,
    hid: torch.Tensor,
    s: torch.Tensor | None = None,
    columns: int,
    warps: int,
    early: bool,
) -> None:
    """hid[T,H] += sum over k of wts[T,k] * rows[T*k,H], + s[T,H]. Rows contiguous, bf16 or fp32; wts fp32."""
    assert rows.is_contiguous() and wts.is_contiguous() and hid.is_contiguous()
    assert s is None or s.is_contiguous()
    num_rows, hidden_size = hid.shape
    combine_row[num_rows, -(-hidden_size // columns)](
        rows,
        wts,
        hid,
        hid if s is None else s,
        HIDDEN=hidden_size,
        PAIRS=wts.shape[1],
        SHARED=s is not None,
        COLUMNS=columns,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
