"""Pages, state slots and snapshot slots against multisets, by random operations; broken pools must be caught."""

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from firmtoken.runtime.memory.pages import SENTINEL_PAGE, PagePool
from firmtoken.runtime.memory.shortage import NoPages, NoSnapshots, NoStateSlots
from firmtoken.runtime.memory.snapshots import SnapshotSlots
from firmtoken.runtime.memory.states import PADDING_STATE, StateSlots

USABLE = 5


class PageMachine(RuleBasedStateMachine):
    """Holders take, share and give; the reference is how often each page is held."""

    make_pool: type[PagePool] = PagePool

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.make_pool(USABLE + 1)
        self.held: Counter[int] = Counter()

    @rule(count=st.integers(0, USABLE + 1))
    def take(self, count: int) -> None:
        free = USABLE - len(self.held)
        try:
            taken = self.pool.take(count)
        except NoPages:
            assert count > free
            return
        assert len(taken) == count <= free
        assert not self.held.keys() & set(taken), "a page that somebody holds"
        self.held.update(taken)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, USABLE))
    def share(self, index: int) -> None:
        page = sorted(self.held)[index % len(self.held)]
        self.pool.share((page,))
        self.held[page] += 1

    @precondition(lambda self: self.held)
    @rule(indices=st.lists(st.integers(0, USABLE), max_size=4))
    def give(self, indices: list[int]) -> None:
        pages = [sorted(self.held)[index % len(self.held)] for index in indices]
        pages = [page for page in {*pages} for _ in range(min(pages.count(page), self.held[page]))]
        self.pool.give(pages)
        self.held -= Counter(pages)

    @precondition(lambda self: len(self.held) < USABLE)
    @rule()
    def what_is_free_is_refused(self) -> None:
        free = next(page for page in range(1, USABLE + 1) if not self.held[page])
        for change in (self.pool.share, self.pool.give):
            refused = False
            try:
                change((free,))
            except AssertionError:
                refused = True
            assert refused, "a free page was shared or given"

    @invariant()
    def agrees(self) -> None:
        pages = range(USABLE + 1)
        assert [self.pool.references_to(page) for page in pages] == [self.held[p] for p in pages]
        assert sorted(self.pool.free) == [page for page in pages[1:] if not self.held[page]]
        assert self.pool.num_free == USABLE - len(self.held)
        assert self.pool.references_to(SENTINEL_PAGE) == 0


class SlotMachine(RuleBasedStateMachine):
    """State slots and snapshot slots side by side; the reference is who has which."""

    make_states: type[StateSlots] = StateSlots
    make_snapshots: type[SnapshotSlots] = SnapshotSlots

    def __init__(self) -> None:
        super().__init__()
        self.states = self.make_states(USABLE + 1)
        self.snapshots = self.make_snapshots(USABLE)
        self.pairs: list[tuple[int, ...]] = []
        self.taken: list[int] = []

    @rule(count=st.integers(1, 3))
    def take_states(self, count: int) -> None:
        held = sum(map(len, self.pairs))
        try:
            slots = self.states.take(count)
        except NoStateSlots:
            assert count > USABLE - held
            return
        assert len(slots) == count <= USABLE - held
        self.pairs.append(slots)

    @precondition(lambda self: self.pairs)
    @rule(index=st.integers(0, USABLE))
    def give_states(self, index: int) -> None:
        self.states.give(self.pairs.pop(index % len(self.pairs)))

    @rule()
    def take_snapshot(self) -> None:
        try:
            self.taken.append(self.snapshots.take())
        except NoSnapshots:
            assert len(self.taken) == USABLE

    @precondition(lambda self: self.taken)
    @rule(index=st.integers(0, USABLE))
    def give_snapshot(self, index: int) -> None:
        self.snapshots.give(self.taken.pop(index % len(self.taken)))

    @invariant()
    def agrees(self) -> None:
        held = [slot for pair in self.pairs for slot in pair]
        assert sorted((*held, *self.states.free)) == list(range(1, USABLE + 1))
        assert PADDING_STATE not in held
        assert sorted((*self.taken, *self.snapshots.free)) == list(range(USABLE))
        assert self.states.num_free == USABLE - len(held)
        assert self.snapshots.num_free == USABLE - len(self.taken)


FEW = settings(max_examples=60, stateful_step_count=30, deadline=None)
PageMachine.TestCase.settings = SlotMachine.TestCase.settings = FEW
TestRandomPages = PageMachine.TestCase
TestRandomSlots = SlotMachine.TestCase


class HandsOutAPageTwice(PagePool):
    """A page that is given goes to the free list once too often."""

    def give(self, pages: tuple[int, ...]) -> None:
        super().give(pages)
        self._free += [page for page in pages if self._free.count(page) == 1]


class FreesASharedPage(PagePool):
    """Whoever gives first frees it for all."""

    def give(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            self._references[page] = 1
            super().give((page,))


class SharesWithoutCounting(PagePool):
    """A second holder that nobody knows of."""

    def share(self, pages: tuple[int, ...]) -> None:
        assert all(self._references[page] for page in pages)


class HandsOutTheSentinel(PagePool):
    """The target of padded rows belongs to a request."""

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages)
        self._free[0] = SENTINEL_PAGE


class TakesWhatThereIs(PagePool):
    """Loses the pages that were there when too few were."""

    def take(self, count: int) -> tuple[int, ...]:
        if count > len(self._free):
            self._free.clear()
        return super().take(count)


class RefusesTheLastPage(PagePool):
    """Off by one: the pool is never used up."""

    def take(self, count: int) -> tuple[int, ...]:
        if count >= len(self._free):
            raise NoPages("one page is kept back")
        return super().take(count)


class HandsOutThePaddingState(StateSlots):
    """Slot 0 belongs to padded rows."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self._free[0] = PADDING_STATE


class KeepsTheShadow(StateSlots):
    """Half of what is given is lost."""

    def give(self, slots: tuple[int, ...]) -> None:
        super().give(slots[:1])


class HandsOutASnapshotTwice(SnapshotSlots):
    """The slot stays in the free list."""

    def take(self) -> int:
        slot = super().take()
        if len(self._free) == 1:
            self._free.insert(0, slot)
        return slot


def catches(machine: type[RuleBasedStateMachine]) -> None:
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine,
            settings=settings(
                FEW,
                max_examples=500,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )


@pytest.mark.parametrize(
    "broken",
    [
        HandsOutAPageTwice,
        FreesASharedPage,
        SharesWithoutCounting,
        HandsOutTheSentinel,
        TakesWhatThereIs,
        RefusesTheLastPage,
    ],
)
def test_the_machine_catches_a_broken_page_pool(broken: type[PagePool]) -> None:
    class Broken(PageMachine):
        make_pool = broken

    catches(Broken)


@pytest.mark.parametrize("broken", [HandsOutThePaddingState, KeepsTheShadow])
def test_the_machine_catches_broken_state_slots(broken: type[StateSlots]) -> None:
    class Broken(SlotMachine):
        make_states = broken

    catches(Broken)


def test_the_machine_catches_broken_snapshot_slots() -> None:
    class Broken(SlotMachine):
        make_snapshots = HandsOutASnapshotTwice

    catches(Broken)


@pytest.mark.report(8)
def test_the_sentinel_page_is_counted_and_a_full_pool_gives_nothing_rather_than_something() -> None:
    pool = PagePool(4)
    with pytest.raises(NoPages, match="4 pages wanted, 3 free"):
        pool.take(4)
    assert pool.num_free == pool.num_usable == 3
    assert sorted(pool.take(3)) == [1, 2, 3]
