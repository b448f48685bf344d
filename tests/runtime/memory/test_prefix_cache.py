"""The prefix cache against a naive one, by random operations; and broken caches that the same harness must catch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from firmtoken.runtime.memory.pages import PagePool
from firmtoken.runtime.memory.prefix_cache import Node, PrefixCache
from firmtoken.runtime.memory.shortage import NoPages, NoSnapshots
from firmtoken.runtime.memory.snapshots import SnapshotSlots

PAGE_SIZE = 2
Tokens = tuple[int, ...]


@dataclass(slots=True)
class NaiveCache:
    """Every cached prefix, by its whole text; what a match must answer follows from it alone."""

    hybrid: bool
    pages: dict[Tokens, int] = field(default_factory=dict)
    snapshots: dict[Tokens, int] = field(default_factory=dict)

    def match(self, tokens: Tokens) -> Tokens:
        """The longest usable prefix that leaves the last token out."""
        usable = self.snapshots if self.hybrid else self.pages
        ends = range((len(tokens) - 1) // PAGE_SIZE * PAGE_SIZE, 0, -PAGE_SIZE)
        return next((tokens[:end] for end in ends if tokens[:end] in usable), ())

    def insert(self, tokens: Tokens, pages: tuple[int, ...], snapshot: int | None) -> None:
        """Keeps what is cached already."""
        for index, page in enumerate(pages):
            self.pages.setdefault(tokens[: (index + 1) * PAGE_SIZE], page)
        if snapshot is not None:
            self.snapshots.setdefault(tokens, snapshot)

    def shrink_to(self, seen: dict[Tokens, Node]) -> None:
        """Evictions are the real cache's choice; `check` proves that they were legal."""
        self.pages = {prefix: page for prefix, page in self.pages.items() if prefix in seen}
        self.snapshots = {
            prefix: slot
            for prefix, slot in self.snapshots.items()
            if prefix in seen and seen[prefix].snapshot is not None
        }


def texts(cache: PrefixCache) -> dict[Tokens, Node]:
    """Node of each cached prefix."""
    found: dict[Tokens, Node] = {}
    for node in cache.nodes():
        step: Node | None = node
        text: Tokens = ()
        while step is not None:
            text = step.tokens + text
            step = step.parent
        found[text] = node
    return found


def check(cache: PrefixCache, pool: PagePool, model: NaiveCache, held: list[int]) -> None:
    """Everything that must hold between operations; `held` are the pages that sequences hold."""
    seen = texts(cache)
    assert {text: node.page for text, node in seen.items()} == model.pages
    snapshots = {t: node.snapshot for t, node in seen.items() if node.snapshot is not None}
    assert snapshots == model.snapshots
    assert len(set(snapshots.values())) == len(snapshots), "two nodes share a snapshot"
    assert cache.evictable == sum(node.users == 0 for node in seen.values())
    owned = [node.page for node in seen.values()]
    assert len(set(owned)) == len(owned)
    for page in range(1, pool.num_usable + 1):
        assert pool._references[page] == held.count(page) + owned.count(page), f"page {page}"
    assert pool.num_free == pool.num_usable - len(set(held) | set(owned))
    for node in seen.values():
        below = node.readers + sum(child.users for child in node.children.values())
        assert node.users == below
        assert node.users > 0 or pool._references[node.page] == 1
        if model.hybrid and not node.children and node.users == 0:
            assert node.snapshot is not None, "a leaf that leads to no snapshot"


@dataclass(slots=True, kw_only=True)
class User:
    """A sequence as the cache sees it."""

    tokens: Tokens
    pages: list[int]
    node: Node


class CacheMachine(RuleBasedStateMachine):
    """Sequences come, hit, compute, insert, grow and leave; two letters, so that prefixes meet often."""

    make_cache: type[PrefixCache] = PrefixCache

    @initialize(hybrid=st.booleans())
    def start(self, hybrid: bool) -> None:
        self.pool = PagePool(14)
        self.slots = SnapshotSlots(2)
        self.cache = self.make_cache(PAGE_SIZE, self.pool, self.slots, hybrid=hybrid)
        self.model = NaiveCache(hybrid=hybrid)
        self.users: list[User] = []

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple))
    def arrive(self, tokens: Tokens) -> None:
        match = self.cache.match(tokens)
        expected = self.model.match(tokens)
        assert len(match.pages) * PAGE_SIZE == len(expected)
        assert list(match.pages) == [
            self.model.pages[expected[: end + PAGE_SIZE]]
            for end in range(0, len(expected), PAGE_SIZE)
        ]
        if self.model.hybrid:
            assert match.snapshot == self.model.snapshots.get(expected)
        self.cache.lock(match.node)
        self.pool.share(match.pages)
        missing = -(-len(tokens) // PAGE_SIZE) - len(match.pages)
        if missing > self.pool.num_free + self.cache.evictable:
            self.pool.give(match.pages)
            self.cache.unlock(match.node)
        else:
            pages = [*match.pages, *self.take(missing)]
            self.users.append(User(tokens=tokens, pages=pages, node=match.node))
        self.follow_evictions()

    @rule(index=st.integers(0, 9))
    def insert(self, index: int) -> None:
        if not self.users:
            return
        user = self.users[index % len(self.users)]
        num_pages = len(user.tokens) // PAGE_SIZE
        text, pages = user.tokens[: num_pages * PAGE_SIZE], tuple(user.pages[:num_pages])
        known = self.model.snapshots if self.model.hybrid else self.model.pages
        assert self.cache.covers(text) == (text in known or not (text or self.model.hybrid))
        if not pages or self.cache.covers(text):
            return
        snapshot = None
        if self.model.hybrid:
            try:
                snapshot = self.cache.reserve_snapshot()
            except NoSnapshots:
                readers = {node.snapshot for node in self.cache.nodes() if node.readers}
                assert len(readers - {None}) == 2
                return
            self.follow_evictions()
        node = self.cache.insert(text, pages, snapshot)
        self.model.insert(text, pages, snapshot)
        self.cache.lock(node)
        self.cache.unlock(user.node)
        user.node = node
        self.follow_evictions()

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        if self.users:
            user = self.users.pop(index % len(self.users))
            self.cache.unlock(user.node)
            self.pool.give(user.pages)
            self.follow_evictions()

    @rule(count=st.integers(0, 14))
    def evict(self, count: int) -> None:
        free, evictable = self.pool.num_free, self.cache.evictable
        freed = self.cache.evict(count)
        assert freed >= min(count, evictable)
        assert self.pool.num_free == free + freed
        assert self.model.hybrid or freed == min(count, evictable)
        self.follow_evictions()

    def take(self, count: int) -> tuple[int, ...]:
        if self.pool.num_free < count:
            self.cache.evict(count - self.pool.num_free)
        return self.pool.take(count)

    def follow_evictions(self) -> None:
        self.model.shrink_to(texts(self.cache))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "users"):
            held = [page for user in self.users for page in user.pages]
            check(self.cache, self.pool, self.model, held)


CacheMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestRandomOperations = CacheMachine.TestCase


class EvictsWhatIsInUse(PrefixCache):
    """Forgets that a locked page may not leave."""

    def lock(self, node: Node) -> None:
        node.readers += 1


class CoversTheLastToken(PrefixCache):
    """A hit that leaves nothing to compute."""

    def match(self, tokens: Sequence[int]):  # type: ignore[no-untyped-def]  # a planted fault
        return super().match((*tokens, 0))


class LosesReferences(PrefixCache):
    """Caches pages without holding them."""

    def _append(self, parent: Node, key: Tokens, page: int) -> Node:
        node = super()._append(parent, key, page)
        self._pool.give((page,))
        return node


class SharesSnapshots(PrefixCache):
    """Hands out a slot that somebody reads."""

    def reserve_snapshot(self) -> int:
        if self._snapshots.num_free:
            return self._snapshots.take()
        return next(iter(self._owners))


@pytest.mark.parametrize(
    "broken", [EvictsWhatIsInUse, CoversTheLastToken, LosesReferences, SharesSnapshots]
)
def test_the_harness_catches_a_broken_cache(broken: type[PrefixCache]) -> None:
    class Broken(CacheMachine):
        make_cache = broken

    few = settings(
        max_examples=1_000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(BaseException):  # noqa: B017  # whichever fault it meets first
        run_state_machine_as_test(Broken, settings=few)


def test_a_full_pool_gives_nothing_rather_than_something() -> None:
    pool = PagePool(4)
    with pytest.raises(NoPages, match="4 pages wanted, 3 free"):
        pool.take(4)
    assert pool.num_free == 3
    assert 0 not in pool.take(3)


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


def test_without_snapshot_slots_nothing_is_cached_and_nothing_fails() -> None:
    cache = PrefixCache(PAGE_SIZE, PagePool(4), SnapshotSlots(0), hybrid=True)
    with pytest.raises(NoSnapshots):
        cache.reserve_snapshot()
    assert cache.match((1, 1, 1)).pages == ()
