"""The prefix cache against a naive one, by random operations; and broken caches that the same machine must catch."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.runtime.memory.reference_cache import PAGE_SIZE, CacheMachine, Tokens

from firmtoken.runtime.engine.invariants import InvariantBroken
from firmtoken.runtime.memory.pages import PagePool
from firmtoken.runtime.memory.prefix_cache import Match, Node, PrefixCache
from firmtoken.runtime.memory.shortage import NoSnapshots, Shortage
from firmtoken.runtime.memory.snapshots import SnapshotSlots

CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRandomOperations = CacheMachine.TestCase


class CoversTheLastToken(PrefixCache):
    """A hit that leaves nothing to compute."""

    def match(self, tokens: Tokens) -> Match:
        return super().match((*tokens, 0))


class EndsWhereNoSnapshotIs(PrefixCache):
    """Pages of a hit without the states that belong to them."""

    def match(self, tokens: Tokens) -> Match:
        hybrid, self._hybrid = self._hybrid, False
        match = super().match(tokens)
        self._hybrid = hybrid
        return match


class CachesWithoutAReference(PrefixCache):
    """The page is free again when its sequence ends."""

    def _append(self, parent: Node, key: Tokens, page: int) -> Node:
        node = super()._append(parent, key, page)
        self._pool.give((page,))
        return node


class EvictsWhatIsInUse(PrefixCache):
    """Forgets that a locked page may not leave."""

    def lock(self, node: Node) -> None:
        node.readers += 1


class NeverUnlocks(PrefixCache):
    """The lock stays when its sequence is gone."""

    def unlock(self, node: Node) -> None:
        node.readers -= 1


class UnlocksTheLastPageOnly(PrefixCache):
    """The pages before it stay locked."""

    def unlock(self, node: Node) -> None:
        super().unlock(node)
        if node.parent is not None and node.parent.parent is not None:
            node.parent.users += 1
            self.evictable -= node.parent.users == 1


class HandsOutASnapshotInUse(PrefixCache):
    """Shares a slot with its owner instead of taking it away."""

    def reserve_snapshot(self) -> int:
        if self._snapshots.num_free:
            return self._snapshots.take()
        return next(iter(self._owners))


class StealsASnapshotThatIsRead(PrefixCache):
    """The least recently used, whoever reads it."""

    def reserve_snapshot(self) -> int:
        if self._snapshots.num_free == 0:
            self._forget_snapshot(min(self._owners.values(), key=lambda node: node.snapshot_used))
        return self._snapshots.take()


class StealsTheNewestSnapshot(PrefixCache):
    """The conversation that was just here has to be computed again."""

    def reserve_snapshot(self) -> int:
        for node in self._owners.values():
            node.snapshot_used = -node.snapshot_used
        slot = super().reserve_snapshot()
        for node in self._owners.values():
            node.snapshot_used = -node.snapshot_used
        return slot


class LosesTheSecondSnapshot(PrefixCache):
    """What is inserted where a snapshot is already comes back to nobody."""

    def _keep(self, node: Node, snapshot: int) -> None:
        if node.snapshot is None:
            super()._keep(node, snapshot)


class ForgetsTheSnapshotOfWhatIsRemoved(PrefixCache):
    """The slot of an evicted page is lost."""

    def _remove(self, node: Node) -> Node:
        node.snapshot = None
        return super()._remove(node)


class KeepsPagesThatLeadNowhere(PrefixCache):
    """Pages without a snapshot behind them fill the pool."""

    def _prune(self, node: Node) -> Node:
        return node


class EvictsTheNewest(PrefixCache):
    """The right number of the wrong pages."""

    def evict(self, count: int) -> int:
        for node in self.nodes():
            node.touched = -node.touched
        freed = super().evict(count)
        for node in self.nodes():
            node.touched = -node.touched
        return freed


class CountsOneTooMany(PrefixCache):
    """A removed page still counts as evictable."""

    def _remove(self, node: Node) -> Node:
        parent = super()._remove(node)
        self.evictable += parent.users == 0 and parent.parent is not None
        return parent


class RetiresAllButOneSubtree(PrefixCache):
    """Something that was cached before can still be found."""

    def retire(self) -> None:
        spared = tuple(self.root.children.items())[1:]
        for key, _ in spared:
            del self.root.children[key]
        super().retire()
        self.root.children.update(spared)
        for _, node in spared:
            node.parent = self.root


class RetiresAndForgetsASubtree(PrefixCache):
    """Pages that nobody can reach and nobody frees."""

    def retire(self) -> None:
        for key in tuple(self.root.children)[1:]:
            del self.root.children[key]
        super().retire()


class RetiresWithoutFreeing(PrefixCache):
    """Unused pages stay where no match and no eviction finds them."""

    def retire(self) -> None:
        for node in self._leaves:
            self.lock(node)
        super().retire()
        for node in self._leaves:
            node.readers -= 1


class RetiresAReadSnapshot(PrefixCache):
    """A sequence that has yet to restore its hit's states finds somebody else's."""

    def retire(self) -> None:
        for node in tuple(self._owners.values()):
            self._forget_snapshot(node)
        super().retire()


class NeverFreesTheRetired(PrefixCache):
    """What was in use when the cache was retired stays for ever."""

    def _drop_retired(self, node: Node) -> None:
        pass


BROKEN = [
    CoversTheLastToken,
    EndsWhereNoSnapshotIs,
    CachesWithoutAReference,
    EvictsWhatIsInUse,
    NeverUnlocks,
    UnlocksTheLastPageOnly,
    HandsOutASnapshotInUse,
    StealsASnapshotThatIsRead,
    StealsTheNewestSnapshot,
    LosesTheSecondSnapshot,
    ForgetsTheSnapshotOfWhatIsRemoved,
    KeepsPagesThatLeadNowhere,
    EvictsTheNewest,
    CountsOneTooMany,
    RetiresAllButOneSubtree,
    RetiresAndForgetsASubtree,
    RetiresWithoutFreeing,
    RetiresAReadSnapshot,
    NeverFreesTheRetired,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_the_machine_catches_a_broken_cache(broken: type[PrefixCache]) -> None:
    class Broken(CacheMachine):
        make_cache = broken

    with pytest.raises((AssertionError, InvariantBroken, Shortage)):
        run_state_machine_as_test(
            Broken,
            settings=settings(
                max_examples=2_000,
                stateful_step_count=40,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )


def test_the_least_recently_used_snapshot_goes_first() -> None:
    pool, slots = PagePool(9), SnapshotSlots(2)
    cache = PrefixCache(PAGE_SIZE, pool, slots, hybrid=True)
    for first in (1, 2):
        pages = pool.take(1)
        cache.insert((first, first), pages, cache.reserve_snapshot())
        pool.give(pages)
    cache.match((1, 1, 0))
    pages = pool.take(1)
    cache.insert((3, 3), pages, cache.reserve_snapshot())
    assert cache.match((1, 1, 0)).pages and not cache.match((2, 2, 0)).pages
    assert pool.num_free == 6


@pytest.mark.report(52)
def test_without_snapshot_slots_nothing_is_cached_and_nothing_fails() -> None:
    cache = PrefixCache(PAGE_SIZE, PagePool(4), SnapshotSlots(0), hybrid=True)
    with pytest.raises(NoSnapshots):
        cache.reserve_snapshot()
    assert cache.match((1, 1, 1)).pages == ()


def test_a_page_of_a_retired_tree_is_not_taken_into_the_new_one() -> None:
    pool = PagePool(4)
    cache = PrefixCache(PAGE_SIZE, pool, SnapshotSlots(0), hybrid=False)
    pages = pool.take(1)
    cache.lock(cache.insert((1, 1), pages, None))
    cache.retire()
    with pytest.raises(AssertionError, match="page 1 is not the inserter's own"):
        cache.insert((1, 1), pages, None)
