"""resolve, admit and fetch: which expert is where, and that its bytes are there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firmtoken.runtime.kernels.admit.reference import admit
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots

EXPERTS, FIRST, OVERFLOW = 12, 3, 40
Launch = Callable[..., Any]


def plain_arena(num_slots: int, size: int = 8) -> ExpertArena:
    slots = torch.zeros(num_slots, size, dtype=torch.uint8)
    return ExpertArena(slots=slots, parts={}, matrices={})


def pairs_of(miss: torch.Tensor) -> list[tuple[int, int]]:
    count = int(miss[0])
    return [(int(e), int(s)) for e, s in miss[1 : 1 + 2 * count].view(count, 2)]


@dataclass
class Reference:
    """The contract in the plainest Python: a list of (expert, last step) per slot of the range."""

    num_slots: int
    owners: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owners = [-1] * self.num_slots
        self.used = [0] * self.num_slots

    def step(self, rows: list[list[int]], *, held: bool) -> dict[int, tuple[int, bool]]:
        """Expert -> (slot, whether it must be fetched)."""
        wanted = list(dict.fromkeys(e for row in rows for e in row if e >= 0))
        now = max(self.used, default=0) + 1
        placed = {}
        for expert in wanted:
            if expert in self.owners:
                index = self.owners.index(expert)
                self.used[index] = now
                placed[expert] = (FIRST + index, False)
        spare = OVERFLOW
        for expert in wanted:
            if expert in placed:
                continue
            free = [i for i in range(self.num_slots) if self.owners[i] == -1]
            old = [i for i in range(self.num_slots) if self.owners[i] not in (-1, *wanted)]
            ranked = free or sorted(old, key=lambda i: (self.used[i], i))
            if held or not ranked:
                placed[expert] = (spare, True)
                spare += 1
            else:
                self.owners[ranked[0]], self.used[ranked[0]] = expert, now
                placed[expert] = (FIRST + ranked[0], True)
        return placed


def one_batch(num_rows: int, *, held: bool) -> Batch:
    empty = torch.zeros(num_rows, dtype=torch.int64)
    return Batch(
        rows=num_rows,
        real_rows=num_rows,
        token_ids=empty,
        positions=empty,
        token_slots=empty,
        segments=(),
        held=held,
    )


routes = st.lists(
    st.lists(st.sampled_from(range(EXPERTS)), min_size=2, max_size=2, unique=True)
    | st.just([-1, -1]),
    min_size=1,
    max_size=4,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    num_slots=st.integers(1, EXPERTS),
    steps=st.lists(st.tuples(routes, st.booleans()), min_size=1, max_size=12),
    spare=st.integers(0, 3),
)
def test_admit_does_what_the_contract_says_over_random_routes(
    num_slots: int, steps: list[tuple[list[list[int]], bool]], spare: int
) -> None:
    arena = plain_arena(OVERFLOW + 8)
    table = torch.full((EXPERTS,), -1, dtype=torch.int32)
    lru = torch.zeros(num_slots + spare, dtype=torch.int64)
    reference = Reference(num_slots)
    for rows, held in steps:
        slots = torch.full((len(rows), 2), 99, dtype=torch.int32)
        miss = torch.full((1 + 2 * EXPERTS,), 99, dtype=torch.int32)
        hits = admit(
            one_batch(len(rows), held=held),
            ids=torch.tensor(rows, dtype=torch.int32),
            table=table,
            lru=lru,
            slots=slots,
            miss=miss,
            cache=ExpertSlots(first=FIRST, count=num_slots, arena=arena),
            overflow=ExpertSlots(first=OVERFLOW, count=8, arena=arena),
            num_experts=EXPERTS,
        )
        placed = reference.step(rows, held=held)
        assert slots.tolist() == [[placed[e][0] if e >= 0 else -1 for e in row] for row in rows]
        fetched = [(e, slot) for e, (slot, missing) in placed.items() if missing]
        assert pairs_of(miss) == fetched
        assert hits == len(placed) - len(fetched)
        for expert in range(EXPERTS):
            home = FIRST + reference.owners.index(expert) if expert in reference.owners else -1
            assert table[expert] == home
        assert lru[num_slots:].tolist() == [0] * spare


def test_a_held_layer_evicts_nothing(launch: Launch, make_batch: Callable[..., Batch]) -> None:
    arena = plain_arena(OVERFLOW + 4)
    table = torch.tensor([FIRST, FIRST + 1, *[-1] * 10], dtype=torch.int32)
    before, lru = table.clone(), torch.tensor([1, 2])
    slots, miss = torch.zeros(1, 2, dtype=torch.int32), torch.zeros(25, dtype=torch.int32)
    launch(
        "admit",
        make_batch([], held=True),
        ids=torch.tensor([[7, 1]], dtype=torch.int32),
        table=table,
        lru=lru,
        slots=slots,
        miss=miss,
        cache=ExpertSlots(first=FIRST, count=2, arena=arena),
        overflow=ExpertSlots(first=OVERFLOW, count=4, arena=arena),
        num_experts=EXPERTS,
    )
    assert torch.equal(table, before)
    assert slots.tolist() == [[OVERFLOW, FIRST + 1]]
    assert pairs_of(miss) == [(7, OVERFLOW)]
    assert lru.tolist() == [1, 3]


def test_an_empty_slot_goes_first_whatever_its_stamp(
    launch: Launch, make_batch: Callable[..., Batch]
) -> None:
    arena = plain_arena(OVERFLOW + 4)
    table = torch.tensor([FIRST, FIRST + 2, *[-1] * 10], dtype=torch.int32)
    slots, miss = torch.zeros(1, 1, dtype=torch.int32), torch.zeros(25, dtype=torch.int32)
    hits = launch(
        "admit",
        make_batch([]),
        ids=torch.tensor([[7]], dtype=torch.int32),
        table=table,
        lru=torch.tensor([1, 9, 2]),
        slots=slots,
        miss=miss,
        cache=ExpertSlots(first=FIRST, count=3, arena=arena),
        overflow=ExpertSlots(first=OVERFLOW, count=4, arena=arena),
        num_experts=EXPERTS,
    )
    assert (hits, slots.tolist()) == (0, [[FIRST + 1]])


@pytest.mark.parametrize("ids", [None, [[0, 5], [5, -1], [11, 2]]])
def test_resolve_gives_missing_experts_consecutive_staging_slots(
    launch: Launch,
    make_batch: Callable[..., Batch],
    poisoned: Callable[..., torch.Tensor],
    ids: list[list[int]] | None,
) -> None:
    table = torch.tensor([9, -1, 8, -1, -1, -1, 7, 6, -1, 5, 4, -1], dtype=torch.int32)
    by_expert, miss = poisoned(12, dtype=torch.int32), poisoned(25, dtype=torch.int32)
    given = {} if ids is None else {"ids": torch.tensor(ids, dtype=torch.int32)}
    staged = ExpertSlots(first=20, count=6, arena=plain_arena(26))
    launch("resolve", make_batch([]), table=table, staged=staged, map=by_expert, miss=miss, **given)
    missing = [1, 3, 4, 5, 8, 11] if ids is None else [5, 11]
    wanted = table.tolist()
    for place, expert in enumerate(missing):
        wanted[expert] = 20 + place
    assert by_expert.tolist() == wanted
    assert pairs_of(miss) == [(e, wanted[e]) for e in missing]


@pytest.mark.parametrize("ids", [None, [[0, 5], [5, 3], [11, 2]]])
def test_resolve_lists_one_wave_of_the_missing_experts_and_no_other(
    launch: Launch,
    make_batch: Callable[..., Batch],
    poisoned: Callable[..., torch.Tensor],
    ids: list[list[int]] | None,
) -> None:
    table = torch.tensor([9, -1, 8, -1, -1, -1, 7, 6, -1, 5, 4, -1], dtype=torch.int32)
    given = {} if ids is None else {"ids": torch.tensor(ids, dtype=torch.int32)}
    missing = [1, 3, 4, 5, 8, 11] if ids is None else [3, 5, 11]
    for wave in range(4):
        staged = ExpertSlots(first=20 + 2 * (wave % 2), count=2, arena=plain_arena(24))
        by_expert, miss = poisoned(12, dtype=torch.int32), poisoned(25, dtype=torch.int32)
        launch(
            "resolve",
            make_batch([]),
            table=table,
            staged=staged,
            map=by_expert,
            miss=miss,
            wave=wave,
            **given,
        )
        wanted = table.tolist() if wave == 0 else [-1] * 12
        listed = [(e, staged.first + i) for i, e in enumerate(missing[2 * wave : 2 * wave + 2])]
        for expert, slot in listed:
            wanted[expert] = slot
        assert by_expert.tolist() == wanted
        assert pairs_of(miss) == listed


def test_more_missing_experts_than_fit_at_once_are_our_bug(
    launch: Launch, make_batch: Callable[..., Batch], poisoned: Callable[..., torch.Tensor]
) -> None:
    staged = ExpertSlots(first=20, count=2, arena=plain_arena(24))
    with pytest.raises(AssertionError, match="3 experts missing, 2 staging slots"):
        launch(
            "resolve",
            make_batch([]),
            table=torch.tensor([-1, -1, 7, -1], dtype=torch.int32),
            staged=staged,
            map=poisoned(4, dtype=torch.int32),
            miss=poisoned(9, dtype=torch.int32),
        )


def test_resolve_of_nothing_missing(
    launch: Launch, make_batch: Callable[..., Batch], poisoned: Callable[..., torch.Tensor]
) -> None:
    table = torch.arange(12, dtype=torch.int32)
    by_expert, miss = poisoned(12, dtype=torch.int32), poisoned(25, dtype=torch.int32)
    staged = ExpertSlots(first=20, count=0, arena=plain_arena(20))
    launch("resolve", make_batch([]), table=table, staged=staged, map=by_expert, miss=miss)
    assert torch.equal(by_expert, table)
    assert pairs_of(miss) == []


@pytest.mark.report(61)
def test_fetch_moves_the_listed_experts_and_counts_their_bytes(
    launch: Launch, make_batch: Callable[..., Batch]
) -> None:
    arena = plain_arena(30)
    bank = torch.randint(1, 255, (EXPERTS, 8), dtype=torch.uint8)
    miss = torch.zeros(25, dtype=torch.int32)
    miss[:5] = torch.tensor([2, 7, 21, 0, 4])
    cache = ExpertSlots(first=3, count=5, arena=arena)
    overflow = ExpertSlots(first=20, count=4, arena=arena)
    moved = launch("fetch", make_batch([]), miss=miss, bank=bank, cache=cache, overflow=overflow)
    assert moved == 16
    assert torch.equal(arena.slots[21], bank[7])
    assert torch.equal(arena.slots[4], bank[0])
    assert int(arena.slots.any(dim=1).sum()) == 2


def test_fetch_refuses_a_slot_outside_the_named_ranges(
    launch: Launch, make_batch: Callable[..., Batch]
) -> None:
    miss = torch.tensor([1, 0, 9], dtype=torch.int32)
    staged = ExpertSlots(first=3, count=5, arena=plain_arena(30))
    with pytest.raises(AssertionError):
        launch("fetch", make_batch([]), miss=miss, bank=torch.zeros(12, 8), staged=staged)
