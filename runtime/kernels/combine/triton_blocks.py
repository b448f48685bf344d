"""combine of many rows, a block of columns at a time, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.combine.blocks import combine_block
from firmtoken.runtime.kernels.device_rows import DeviceRows


def combine(
    batch: DeviceRows | None,
    *,
    rows: torch.Tensor,
    wts: torch.Tensor,
    hid: torch.Tensor,
    s: torch.Tensor | None = None,
    block: int | None = None,
    rows_at_once: int,
    columns: int,
    warps: int,
) -> None:
    """hid[T,H] += sum over k of wts[T,k] * rows[T*k,B], + s[T,H], in columns block * B on.

    rows, hid and s contiguous, bf16 or fp32; wts fp32.
    """
    assert rows.is_contiguous() and wts.is_contiguous() and hid.is_contiguous()
    assert s is None or s.is_contiguous()
    (num_rows, hidden_size), width = hid.shape, rows.shape[1]
    combine_block[-(-num_rows // rows_at_once), -(-width // columns)](
        rows,
        wts,
        hid,
        hid if s is None else s,
        num_rows,
        block or 0,
        HIDDEN=hidden_size,
        BLOCK=width,
        PAIRS=wts.shape[1],
        SHARED=s is not None,
        ROWS=rows_at_once,
        COLUMNS=columns,
        num_warps=warps,
    )
