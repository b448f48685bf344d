"""embed launched on a GPU: a program for each block of columns of each row."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.embed.gather import gather_rows


def embed(
    rows: DeviceRows, *, table: torch.Tensor, hid: torch.Tensor, block: int, warps: int
) -> None:
    """hid[T,H] = table[V,H] at the rows' token ids; the table in device or pinned memory, either of any float type."""
    num_rows, width = hid.shape
    gather_rows[(-(-width // block), num_rows)](
        table,
        hid,
        rows.token_ids,
        width,
        hid.stride(0),
        BLOCK=block,
        num_warps=warps,
    )
