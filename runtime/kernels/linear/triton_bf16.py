"""linear with bf16 weights and few rows, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.launch_products import Tuning, launch_product


def linear(
    rows: DeviceRows | None, *, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, **tuning: int
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; x and w bf16 with rows of a multiple of 16 bytes, K of 16, y of any float type.

    `tuning`: the fields of `Tuning`.
    """
    # All outputs are those after the coded ones, of which there are none.
    launch_product(
        x,
        w,
        w,
        w,
        y,
        num_coded=0,
        starts=(),
        format_name="bf16",
        has_tail=True,
        tuning=Tuning(**tuning),
    )
