"""admit, resolve and fetch under the interpreter, beside plain Python: for `test_triton_offload.py`."""

import random
import sys
from dataclasses import replace

import torch

from firmtoken.runtime.kernels.admit.reference import admit as admit_reference
from firmtoken.runtime.kernels.admit.triton_step import admit
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots
from firmtoken.runtime.kernels.fetch.triton_gather import fetch
from firmtoken.runtime.kernels.resolve.reference import resolve as resolve_reference
from firmtoken.runtime.kernels.resolve.triton_layer import resolve

POISON = -7
SLOT_BYTES = 208
"""No multiple of a block."""
UNREAD = torch.zeros(1, dtype=torch.int32)
HOST_ROWS = Batch(
    rows=0, real_rows=0, token_ids=UNREAD, positions=UNREAD, token_slots=UNREAD, segments=()
)
ROWS = DeviceRows(**dict.fromkeys(list(DeviceRows.__dataclass_fields__)[:11], UNREAD))


def slots_of(first: int, count: int, arena: torch.Tensor | None = None) -> ExpertSlots:
    held = torch.zeros(1, dtype=torch.uint8) if arena is None else arena
    return ExpertSlots(
        first=first, count=count, arena=ExpertArena(slots=held, parts={}, matrices={})
    )


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def check_admit(seed: int) -> None:
    """A few steps of one layer: tables and recency go on from step to step."""
    draw = random.Random(seed)
    experts, chosen = draw.choice(((8, 2), (33, 4), (64, 8)))
    rows = draw.choice((1, 2, 5))
    count = draw.choice((1, experts // 3, experts - 1, experts))
    cache, overflow = slots_of(40, count), slots_of(500, rows * chosen)
    filled = draw.randint(0, count)
    table = torch.full((experts,), -1, dtype=torch.int32)
    for slot, expert in enumerate(draw.sample(range(experts), filled)):
        table[expert] = cache.first + slot
    stamps = [draw.choice((0, 1, 2, 3, 2**29)) for _ in range(count)]
    lru = torch.tensor([*stamps, 99], dtype=torch.int64)
    states = [(table.clone(), lru.clone()) for _ in range(2)]
    for _ in range(6):
        ids = [draw.sample(range(experts), chosen) for _ in range(rows)]
        if rows > 1 and draw.random() < 0.5:
            ids[-1] = [-1] * chosen
        held = draw.random() < 0.3
        found = []
        for (own_table, own_lru), own in zip(states, (False, True), strict=True):
            slots = torch.full((rows, chosen), POISON, dtype=torch.int32)
            miss = torch.full((1 + 2 * experts,), POISON, dtype=torch.int32)
            operands = {
                "ids": torch.tensor(ids, dtype=torch.int32),
                "table": own_table,
                "lru": own_lru,
                "slots": slots,
                "miss": miss,
                "cache": cache,
                "overflow": overflow,
                "num_experts": experts,
            }
            if own:
                word = int32(cache.first if held else draw.choice((-1, 7)))
                admit(replace(ROWS, held=word), **operands, warps=4, early=False)
            else:
                admit_reference(replace(HOST_ROWS, held=held), **operands)
            found.append((slots.tolist(), miss[: 1 + 2 * int(miss[0])].tolist()))
        assert found[0] == found[1], (seed, found)
        assert torch.equal(states[0][0], states[1][0]), (seed, states)
        assert torch.equal(states[0][1], states[1][1]), (seed, states)


def check_resolve(seed: int) -> None:
    draw = random.Random(seed)
    experts = draw.choice((8, 33, 64))
    known = draw.randint(0, experts)
    table = torch.full((experts,), -1, dtype=torch.int32)
    for slot, expert in enumerate(draw.sample(range(experts), known)):
        table[expert] = 10 + slot
    absent = experts - known
    waves = draw.choice((None, None, 0, 1, 2))
    count = max(1, absent) if waves is None else max(1, absent // 2)
    ids = None
    if draw.random() < 0.6:
        rows = draw.choice((1, 3, 700))
        ids = torch.tensor(
            [[draw.randrange(-1, experts) for _ in range(4)] for _ in range(rows)],
            dtype=torch.int32,
        )
    found = []
    for own in (False, True):
        operands = {
            "table": table,
            "staged": slots_of(300, count),
            "map": torch.full((experts,), POISON, dtype=torch.int32),
            "miss": torch.full((1 + 2 * experts,), POISON, dtype=torch.int32),
            "ids": ids,
            "wave": waves,
        }
        if own:
            resolve(ROWS, **operands, warps=4)
        else:
            resolve_reference(HOST_ROWS, **operands)
        miss = operands["miss"]
        found.append((operands["map"].tolist(), miss[: 1 + 2 * int(miss[0])].tolist()))
    assert found[0] == found[1], (seed, found)


def check_fetch(seed: int) -> None:
    draw = random.Random(seed)
    experts, slots, listed = 6, 9, draw.choice((0, 1, 4))
    bank = torch.randint(0, 256, (experts, SLOT_BYTES), dtype=torch.uint8)
    arena = torch.full((slots, SLOT_BYTES), 77, dtype=torch.uint8)
    wanted = arena.clone()
    targets = draw.sample(range(slots), listed)
    pairs = [(draw.randrange(experts), slot) for slot in targets]
    for expert, slot in pairs:
        wanted[slot] = bank[expert]
    rest = [number for pair in pairs for number in pair] + [0] * (12 - 2 * listed)
    fetch(
        ROWS,
        miss=int32(listed, *rest),
        bank=bank,
        cache=slots_of(0, slots, arena),
        block=32,
        programs=draw.choice((1, 3, 16)),
        warps=4,
        early=False,
    )
    assert torch.equal(arena, wanted), seed


CHECKS = {"admit": check_admit, "resolve": check_resolve, "fetch": check_fetch}

if __name__ == "__main__":
    check = CHECKS[sys.argv[1]]
    for number in range(int(sys.argv[2])):
        torch.manual_seed(number)
        check(number)
