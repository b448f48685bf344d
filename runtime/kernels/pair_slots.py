"""Which slot each (row, expert) pair of a launch finds its weights in."""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.expert_slots import ExpertSlots

PADDED = -1
"""Pairs of padded rows: they give zeros."""
ELSEWHERE = -2
"""Pairs of an expert that this launch does not have (another wave's): what they give stays as it is."""
FEW_PAIRS = 32
"""Up to here one product a pair costs a CPU less than sorting pairs by expert: 0.60 against 0.62 ms for 32 of gate and
up, 0.34 against 0.40 of down; 1.04 against 0.83 and 0.59 against 0.56 for 64 (runtime/kernels/NOTES.md). The results
differ by rounding only."""


def pair_slots(
    experts: ExpertSlots,
    ids: torch.Tensor | None,
    by_expert: torch.Tensor | None,
    slots: torch.Tensor | None,
) -> list[int]:
    """Absolute slot of each pair, row by row, `PADDED` or `ELSEWHERE`.

    From slots[T,k], or from ids[T,k] through by_expert[E], or as ids counted from the range's first slot.
    """
    if slots is not None:
        found: list[int] = slots.view(-1).tolist()
        return found
    assert ids is not None
    wanted: list[int] = ids.view(-1).tolist()
    if by_expert is None:
        return [experts.first + expert if expert >= 0 else PADDED for expert in wanted]
    slot_of: list[int] = [slot if slot >= 0 else ELSEWHERE for slot in by_expert.tolist()]
    return [slot_of[expert] if expert >= 0 else PADDED for expert in wanted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Pairs of one slot, at places `begin` to `end - 1` of the sorted order."""

    slot: int
    begin: int
    end: int


def sort_by_slot(slots: list[int]) -> tuple[torch.Tensor, list[Run]]:
    """Pairs in order of slot (int64 [at most P]: none that is elsewhere), and the runs of equal slots in it."""
    groups: dict[int, list[int]] = {}
    for pair, slot in enumerate(slots):
        if slot != ELSEWHERE:
            groups.setdefault(slot, []).append(pair)
    runs = []
    begin = 0
    for slot, pairs in groups.items():
        runs.append(Run(slot=slot, begin=begin, end=begin + len(pairs)))
        begin += len(pairs)
    order = [pair for pairs in groups.values() for pair in pairs]
    return torch.tensor(order, dtype=torch.int64), runs
