"""fetch as copies of rows."""

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
    # As arrays: finding and copying a row costs a quarter less than with tensors (runtime/kernels/NOTES.md).
    slots, experts, listed = ranges[0].arena.slots.numpy(), bank.numpy(), miss.numpy()
    count = int(listed[0])
    numbers: list[int] = listed[1 : 1 + 2 * count].tolist()
    for expert, slot in zip(numbers[::2], numbers[1::2], strict=True):
        assert any(0 <= slot - place.first < place.count for place in ranges)
        slots[slot] = experts[expert]
    return count * bank.shape[1]
