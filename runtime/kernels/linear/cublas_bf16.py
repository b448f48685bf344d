"""linear with bf16 weights on a GPU: the vendor's product, which torch calls in place of `y`."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows


def linear(rows: DeviceRows | None, *, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> None:
    """y[T,N] = x[T,K] w[N,K]^T, all bf16; its workspace is the one that `cublas_setting` asks for."""
    torch.mm(x, w.t(), out=y)
