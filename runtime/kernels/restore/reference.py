"""restore in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch


def restore(
    batch: Batch,
    *,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    snaps: torch.Tensor | None = None,
) -> None:
    """Live and shadow slot of each move get the states of the snapshot, or zeros."""
    conv_elements = conv_state[0].numel()
    for snapshot_slot, *state_slots in batch.moves:
        for state_slot in state_slots:
            if snapshot_slot < 0:
                conv_state[state_slot].zero_()
                recurrent_state[state_slot].zero_()
            else:
                assert snaps is not None, "a hit without snapshots"
                row = snaps[snapshot_slot]
                conv_state[state_slot].view(-1).copy_(row[:conv_elements])
                recurrent_state[state_slot].view(-1).copy_(row[conv_elements:])
