"""`DeviceRows`: what device kernels read of a batch: tensors at fixed addresses, so that a captured graph can replay.

Legend: T rows of the launch (padding included), S sequences of the launch (padding included; T = S in decode), P pages
of the longest sequence that the plan allows.
"""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.sample.device_draws import DeviceDraws


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """Filled by one copy from pinned memory before a launch.

    Padded rows point at the sentinel page, state slot 0 and sequence -1; kernels that write elsewhere than there
    (`route`: expert id -1) read `num_rows`.
    """

    num_rows: torch.Tensor
    """int32 [1]: rows that belong to sequences."""
    token_ids: torch.Tensor
    """int32 [T]"""
    positions: torch.Tensor
    """int32 [T]"""
    token_slots: torch.Tensor
    """int64 [T]: page * page_size + offset, where this token's K and V go."""
    sequences: torch.Tensor
    """int32 [T]: which sequence of the launch a row belongs to; -1 = padding."""
    first_rows: torch.Tensor
    """int32 [S + 1]: first row of each sequence, and the end of the last."""
    starts: torch.Tensor
    """int32 [S]: position of its first row = tokens of it that are in the KV cache already."""
    pages: torch.Tensor
    """int32 [S,P]: page tables; entries beyond a sequence's pages may hold anything."""
    live: torch.Tensor
    """int32 [S]: state slot that its linear layers read and update; 0 = padding."""
    shadow: torch.Tensor
    """int32 [S]: state slot that gets a copy of the state at its last page boundary."""
    boundary: torch.Tensor
    """int32 [S]: after how many of its rows that boundary lies; 0 = not in this launch."""
    draws: DeviceDraws | None = None
    """For `sample`: how each row of the logits is drawn."""
    copies: torch.Tensor | None = None
    """For `copy`: int32 [n, 2], source row and target row."""
    restores: torch.Tensor | None = None
    """For `restore`: int32 [n, 3], snapshot or -1, live and shadow slot; (-1, -1, 0) is nothing to do."""
    moves: tuple[tuple[int, ...], ...] = ()
    """For `snapshot`, which no graph holds: as in `Batch`."""
    held: torch.Tensor | None = None
    """For `admit`: int32 [1], the first slot of the layer's range that nobody may evict from; -1 = none."""
