"""linear with FP8 weights and few rows, launched on a GPU: weights only, x stays bf16."""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.launch_products import Tuning, launch_product


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMatrix:
    """FP8 weights as a checkpoint has them: up to four matrices, joined by rows, and perhaps bf16 rows after them."""

    codes: torch.Tensor
    """e4m3fn [N, K], without NaN; 16-byte aligned."""
    scales: torch.Tensor
    """fp32 [parts], one for each coded matrix."""
    starts: tuple[int, ...] = ()
    """First row of each part but the first."""
    tail: torch.Tensor | None = None
    """bf16 [N2, K]; outputs N to N + N2."""


def linear(
    rows: DeviceRows | None,
    *,
    x: torch.Tensor,
    w: CodedMatrix,
    y: torch.Tensor,
    fp8_units: bool,
    tuning: Tuning,
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; x bf16 with rows of a multiple of 16 bytes, y of any float type.

    `fp8_units`: the card converts e4m3 itself, from capability 8.9 on; without them bits are moved, to the same result.
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
        tuning=tuning,
    )
