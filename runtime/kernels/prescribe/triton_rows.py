"""prescribe launched on a GPU: a program for each row."""

import torch
import triton

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.prescribe.rows import prescribe_rows


def prescribe(
    batch: DeviceRows, *, ids: torch.Tensor, routes: torch.Tensor, conversation: int
) -> None:
    """ids[T,k] = routes[P,k] by position and sequence, both int32."""
    num_rows, chosen = ids.shape
    prescribe_rows[(num_rows,)](
        ids,
        routes,
        batch.positions,
        batch.sequences,
        routes.shape[0],
        chosen,
        ids.stride(0),
        conversation,
        CHOSEN=triton.next_power_of_2(chosen),
        num_warps=1,
    )
