"""fetch in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots


def fetch(
    batch: Batch,
    *,
    miss: torch.Tensor,
    bank: torch.Tensor,
    staged: ExpertSlots | None = None,
    cache: ExpertSlots | None = None,
    overflow: ExpertSlots | None = None,
) -> int:
    """Copies the listed rows of bank[E, slot_bytes] to their slots; returns the bytes moved."""
    ranges = [place for place in (staged, cache, overflow) if place is not None]
    arena = ranges[0].arena.slots
    count = int(miss[0])
    numbers: list[int] = miss[1 : 1 + 2 * count].tolist()
    for expert, slot in zip(numbers[::2], numbers[1::2], strict=True):
        assert any(0 <= slot - place.first < place.count for place in ranges)
        arena[slot].copy_(bank[expert])
    return count * bank.shape[1]
