"""copy launched on a GPU: a program for each block of columns of each pair."""

import torch

from firmtoken.runtime.kernels.copy.pair_rows import copy_pairs
from firmtoken.runtime.kernels.device_rows import DeviceRows


def copy(
    rows: DeviceRows,
    *,
    source: torch.Tensor,
    target: torch.Tensor,
    block: int,
    warps: int,
) -> None:
    """target[t] = source[s] for each (s, t) of `rows.copies`; (-1, 0) is no pair."""
    pairs = rows.copies
    assert pairs is not None, "its rows are there"
    width = source.shape[1]
    copy_pairs[(-(-width // block), pairs.shape[0])](
        source,
        target,
        pairs,
        width,
        source.stride(0),
        target.stride(0),
        BLOCK=block,
        num_warps=warps,
    )
