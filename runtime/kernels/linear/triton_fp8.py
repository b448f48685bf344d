"""linear with FP8 weights and few rows, launched on a GPU: weights only, x stays bf16."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.launch_products import Tuning, launch_product
from firmtoken.runtime.kernels.matrices import CodedMatrix


def linear(
    rows: DeviceRows | None,
    *,
    x: torch.Tensor,
    w: CodedMatrix,
    y: torch.Tensor,
    fp8_units: bool,
    **tuning: int,
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; x bf16 with rows of a multiple of 16 bytes, y of any float type.

    `fp8_units`: the card converts e4m3 itself, from capability 8.9 on; without them bits are moved, to the same result.
    `tuning`: the fields of `Tuning`.
    """
    assert len(w.starts) == w.scales.numel() - 1
    launch_product(
        x,
        w.codes if fp8_units else w.codes.view(torch.int8),
        w.scales,
        x if w.tail is None else w.tail,
        y,
        num_coded=w.codes.shape[0],
        starts=w.starts,
        format_name="fp8" if fp8_units else "fp8_bits",
        has_tail=w.tail is not None,
        tuning=Tuning(**tuning),
    )
