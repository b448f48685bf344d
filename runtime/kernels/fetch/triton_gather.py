"""fetch launched on a GPU: as many programs as the link takes, whatever the list will hold."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.fetch.listed_slots import WORD, fetch_listed


def fetch(
    rows: DeviceRows,
    *,
    miss: torch.Tensor,
    bank: torch.Tensor,
    staged: ExpertSlots | None = None,
    cache: ExpertSlots | None = None,
    overflow: ExpertSlots | None = None,
    block: int,
    programs: int,
    warps: int,
    early: bool,
) -> None:
    """Copies the listed rows of bank uint8 [E, slot_bytes], pinned, to their slots."""
    ranges = [place for place in (staged, cache, overflow) if place is not None]
    slots = ranges[0].arena.slots
    assert bank.is_contiguous() and slots.is_contiguous()
    slot_bytes = bank.shape[1]
    assert slots.shape[1] == slot_bytes and slot_bytes % (4 * WORD) == 0
    fetch_listed[programs,](
        miss,
        bank.view(torch.int32),
        slots.view(torch.int32),
        WORDS=slot_bytes // WORD,
        BLOCK=block,
        PROGRAMS=programs,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
