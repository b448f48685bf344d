"""snapshot in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def snapshot(
    batch: Batch,
    *,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    snaps: torch.Tensor,
) -> None:
    """snaps[to] = the states of slot `from`, for each move."""
    conv_elements = conv_state[0].numel()
    for state_slot, snapshot_slot in batch.moves:
        row = snaps[snapshot_slot]
        row[:conv_elements].copy_(conv_state[state_slot].view(-1))
        row[conv_elements:].copy_(recurrent_state[state_slot].view(-1))
