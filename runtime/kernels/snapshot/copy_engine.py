"""snapshot on a GPU: copies to pinned memory that the copy engine makes beside the kernels of other streams."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows


def snapshot(
    rows: DeviceRows,
    *,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    snaps: torch.Tensor,
) -> None:
    """snaps[to] = the states of slot `from`, for each of `rows.moves`; done when the stream has come here.

    `snaps`: uint8, pinned, a row the bytes of a conv state, then those of a recurrent state.
    """
    for state_slot, snapshot_slot in rows.moves:
        row = snaps[snapshot_slot]
        conv, recurrent = (
            state[state_slot].view(-1).view(torch.uint8) for state in (conv_state, recurrent_state)
        )
        row[: conv.numel()].copy_(conv, non_blocking=True)
        row[conv.numel() :].copy_(recurrent, non_blocking=True)
