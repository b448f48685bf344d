"""add_norm, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.add_norm.rows import add_norm_row
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options


def add_norm(
    batch: DeviceRows | None,
    *,
    hid: torch.Tensor,
    y: torch.Tensor | None = None,
    h: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float,
    warps: int,
    early: bool,
) -> None:
    """hid[T,H] += y; h[T,H] = rmsnorm(hid) * norm; either may be absent. Rows contiguous, bf16 or fp32."""
    assert hid.is_contiguous() and (y is None or y.is_contiguous())
    assert (h is None) == (norm is None) and (h is None or h.is_contiguous())
    num_rows, hidden_size = hid.shape
    # Pointers that are not read or written must still be given.
    add_norm_row[num_rows,](
        hid,
        hid if y is None else y,
        hid if h is None else h,
        hid if norm is None else norm,
        eps,
        HIDDEN=hidden_size,
        ADDED=y is not None,
        NORMED=h is not None,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
