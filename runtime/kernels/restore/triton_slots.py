"""restore launched on a GPU: a program for some words of the states of each move."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.restore.slot_states import restore_slots


def restore(
    rows: DeviceRows,
    *,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    snaps: torch.Tensor | None = None,
    conv_words: int,
    recurrent_words: int,
    block: int,
    warps: int,
) -> None:
    """Live and shadow slot of each move get the states of the snapshot, or zeros.

    Moves are `rows.restores`; (-1, -1, 0) is none. `snaps`: uint8, pinned, a row the bytes of a conv state, then those
    of a recurrent state. States contiguous, of so many words of four bytes each.
    """
    moves = rows.restores
    assert moves is not None, "its rows are there"
    assert conv_state.is_contiguous() and recurrent_state.is_contiguous()
    conv, recurrent = (state.view(-1).view(torch.int32) for state in (conv_state, recurrent_state))
    num_slots = conv_state.shape[0]
    assert conv.numel() == num_slots * conv_words
    assert recurrent.numel() == num_slots * recurrent_words
    restore_slots[(-(-(conv_words + recurrent_words) // block), moves.shape[0])](
        # Without snapshots none is read, but a pointer must be given.
        conv if snaps is None else snaps.view(torch.int32),
        conv,
        recurrent,
        moves,
        CONV=conv_words,
        RECURRENT=recurrent_words,
        BLOCK=block,
        num_warps=warps,
    )
