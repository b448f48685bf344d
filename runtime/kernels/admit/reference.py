"""admit in plain Python: lists are faster than tensors at a decode step's sizes; arrays take them back."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots


def admit(
    batch: Batch,
    *,
    ids: torch.Tensor,
    table: torch.Tensor,
    lru: torch.Tensor,
    slots: torch.Tensor,
    miss: torch.Tensor,
    cache: ExpertSlots,
    overflow: ExpertSlots,
    num_experts: int,
) -> int:
    """slots[T,k] for ids[T,k]; table[E], lru[>= range] and miss[1+2E] as the contract says. Returns the hits."""
    rows: list[list[int]] = ids.tolist()
    slot_of: list[int] = table.tolist()
    used_at: list[int] = lru[: cache.count].tolist()
    experts = dict.fromkeys(expert for row in rows for expert in row if expert >= 0)
    now = max(used_at, default=0) + 1
    missing = []
    for expert in experts:
        slot = slot_of[expert]
        if slot < 0:
            missing.append(expert)
        else:
            used_at[slot - cache.first] = now
    pairs: list[int] = []
    placed = {}
    if missing:
        placed = place(missing, slot_of, used_at, now, cache, overflow, held=batch.held)
        pairs = [number for pair in placed.items() for number in pair]
        table.numpy()[:] = slot_of
    miss.numpy()[: 1 + len(pairs)] = [len(missing), *pairs]
    lru.numpy()[: cache.count] = used_at
    slots.numpy()[:] = [[placed.get(e, slot_of[e]) if e >= 0 else -1 for e in row] for row in rows]
    return len(experts) - len(missing)


def place(
    missing: list[int],
    slot_of: list[int],
    used_at: list[int],
    now: int,
    cache: ExpertSlots,
    overflow: ExpertSlots,
    *,
    held: bool,
) -> dict[int, int]:
    """A slot for each missing expert; updates `slot_of` and `used_at` where it is one of the cache's."""
    owner = {slot: expert for expert, slot in enumerate(slot_of) if slot >= 0}
    victims = [] if held else find_victims(owner, used_at, now, cache)
    placed = {}
    for i, expert in enumerate(missing):
        if i >= len(victims):
            spare = i - len(victims)
            assert spare < overflow.count, f"{overflow.count} overflow slots are too few"
            placed[expert] = overflow.first + spare
            continue
        slot = victims[i]
        if slot in owner:
            slot_of[owner[slot]] = -1
        placed[expert] = slot_of[expert] = slot
        used_at[slot - cache.first] = now
    return placed


def find_victims(
    owner: dict[int, int], used_at: list[int], now: int, cache: ExpertSlots
) -> list[int]:
    """Slots that may be overwritten, in that order: empty ones, then by last use; none that this step uses."""
    free = [
        (cache.first + i in owner, stamp, cache.first + i)
        for i, stamp in enumerate(used_at)
        if stamp < now
    ]
    return [slot for _, _, slot in sorted(free)]
