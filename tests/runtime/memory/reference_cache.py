"""A naive prefix cache over whole texts, and a machine that plays random operations on it and on the real one."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firmtoken.runtime.engine.invariants import (
    check_cache,
    check_pages,
    check_readers,
    check_snapshots,
)
from firmtoken.runtime.memory.pages import PagePool
from firmtoken.runtime.memory.prefix_cache import Node, PrefixCache
from firmtoken.runtime.memory.shortage import NoSnapshots
from firmtoken.runtime.memory.snapshots import SnapshotSlots

PAGE_SIZE = 2
NUM_PAGES = 12
NUM_SNAPSHOTS = 2
Tokens = tuple[int, ...]
TEXTS = st.lists(st.integers(0, 1), min_size=2, max_size=7).map(tuple)


def prefixes(tokens: Tokens) -> list[Tokens]:
    """Texts of its whole pages, shortest first."""
    return [tokens[:end] for end in range(PAGE_SIZE, len(tokens) + 1, PAGE_SIZE)]


@dataclass(slots=True)
class ReferenceCache:
    """Every cached prefix by its whole text; `locked` are the texts that somebody uses, one for each user."""

    hybrid: bool
    pages: dict[Tokens, int] = field(default_factory=dict)
    snapshots: dict[Tokens, int] = field(default_factory=dict)
    touched: dict[Tokens, int] = field(default_factory=dict)
    snapshot_used: dict[Tokens, int] = field(default_factory=dict)
    locked: list[Tokens] = field(default_factory=list)
    now: int = 0

    def match(self, tokens: Tokens) -> Tokens:
        """The longest usable prefix that leaves the last token out."""
        self.now += 1
        usable = self.snapshots if self.hybrid else self.pages
        found: Tokens = max(
            (text for text in prefixes(tokens[:-1]) if text in usable), key=len, default=()
        )
        self.touched |= dict.fromkeys(prefixes(found), self.now)
        self.snapshot_used[found] = self.now
        return found

    def insert(self, tokens: Tokens, pages: tuple[int, ...], snapshot: int | None) -> None:
        """Keeps what is cached already."""
        self.now += 1
        for text, page in zip(prefixes(tokens), pages, strict=True):
            self.pages.setdefault(text, page)
            self.touched[text] = self.now
        if snapshot is not None:
            self.snapshots.setdefault(tokens, snapshot)
        self.snapshot_used[tokens] = self.now

    def unlock(self, text: Tokens) -> None:
        """One user less."""
        self.locked.remove(text)
        self.prune(text)

    def evict(self, count: int) -> int:
        """The least recently touched leaf, again and again."""
        before = len(self.pages)
        while before - len(self.pages) < count and (leaves := [*self.idle_leaves()]):
            oldest = min(leaves, key=self.touched.__getitem__)
            self.remove(oldest)
            self.prune(oldest[:-PAGE_SIZE])
        return before - len(self.pages)

    def steal_snapshot(self) -> int | None:
        """The slot that a full cache gives up; None if all are being read."""
        idle = [text for text in self.snapshots if text not in self.locked]
        if not idle:
            return None
        oldest = min(idle, key=self.snapshot_used.__getitem__)
        slot = self.snapshots.pop(oldest)
        self.prune(oldest)
        return slot

    def used(self, text: Tokens) -> bool:
        """Whether somebody locked this text or one that goes on from it."""
        return any(locked[: len(text)] == text for locked in self.locked)

    def idle_leaves(self) -> Iterable[Tokens]:
        """Texts that nobody uses and that none goes on from."""
        parents = {text[:-PAGE_SIZE] for text in self.pages}
        return (text for text in self.pages if text not in parents and not self.used(text))

    def prune(self, text: Tokens) -> None:
        """Pages that lead to no snapshot are of no use."""
        while self.hybrid and text in self.idle_leaves() and text not in self.snapshots:
            self.remove(text)
            text = text[:-PAGE_SIZE]

    def remove(self, text: Tokens) -> None:
        """A page, and its snapshot if it has one."""
        del self.pages[text]
        self.snapshots.pop(text, None)


@dataclass(slots=True, kw_only=True)
class User:
    """A sequence as the cache sees it."""

    tokens: Tokens
    pages: tuple[int, ...]
    node: Node
    text: Tokens
    """What it has locked."""
    stale: bool = False
    """The cache was retired since."""


class CacheMachine(RuleBasedStateMachine):
    """Sequences come, hit, compute, insert and leave; two letters, so that prefixes meet often."""

    make_cache: type[PrefixCache] = PrefixCache

    @initialize(hybrid=st.booleans())
    def start(self, hybrid: bool) -> None:
        self.pool = PagePool(NUM_PAGES + 1)
        self.slots = SnapshotSlots(NUM_SNAPSHOTS)
        self.cache = self.make_cache(PAGE_SIZE, self.pool, self.slots, hybrid=hybrid)
        self.model = ReferenceCache(hybrid)
        self.users: list[User] = []

    @rule(tokens=TEXTS)
    def arrive(self, tokens: Tokens) -> None:
        """As `Holdings.admit`: match, lock, and take the missing pages or change nothing."""
        match, found = self.cache.match(tokens), self.model.match(tokens)
        assert match.pages == tuple(self.model.pages[text] for text in prefixes(found))
        assert match.snapshot == self.model.snapshots.get(found)
        self.cache.lock(match.node)
        self.model.locked.append(found)
        missing = -(-len(tokens) // PAGE_SIZE) - len(match.pages)
        short = missing - self.pool.num_free
        if short > self.cache.evictable:
            self.cache.unlock(match.node)
            self.model.unlock(found)
            return
        if short > 0:
            self.cache.evict(short)
            self.model.evict(short)
        self.pool.share(match.pages)
        pages = match.pages + self.pool.take(missing)
        self.users.append(User(tokens=tokens, pages=pages, node=match.node, text=found))

    @precondition(lambda self: self.users)
    @rule(index=st.integers(0, 9))
    def insert(self, index: int) -> None:
        """As `Holdings.offer`: a slot for a snapshot, the pages, the lock goes over to the new node."""
        user = self.users[index % len(self.users)]
        num_pages = len(user.tokens) // PAGE_SIZE
        text, pages = user.tokens[: num_pages * PAGE_SIZE], user.pages[:num_pages]
        known = self.model.snapshots if self.model.hybrid else self.model.pages
        assert self.cache.covers(text) == (text in known or not (text or self.model.hybrid))
        # Also what is cached already, as when two of a batch offer the same text: it must change nothing.
        if not pages or user.stale or not (slots := self.reserve()):
            return
        node = self.cache.insert(text, pages, slots[0])
        self.model.insert(text, pages, slots[0])
        self.cache.lock(node)
        self.model.locked.append(text)
        self.cache.unlock(user.node)
        self.model.unlock(user.text)
        user.node, user.text = node, text
        cached = self.cache.pages_of(node)
        self.pool.share(cached)
        self.pool.give(pages)
        user.pages = cached + user.pages[num_pages:]

    @precondition(lambda self: self.users)
    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        user = self.users.pop(index % len(self.users))
        self.cache.unlock(user.node)
        self.pool.give(user.pages)
        if not user.stale:
            self.model.unlock(user.text)

    @rule(tokens=TEXTS)
    def serve(self, tokens: Tokens) -> None:
        """A whole life at once, so that much is cached that nobody uses."""
        newest = len(self.users)
        self.arrive(tokens)
        if len(self.users) > newest:
            self.insert(newest)
            self.leave(newest)

    @rule(count=st.sampled_from((0, 1, 1, 1, 2, 3, NUM_PAGES)))
    def evict(self, count: int) -> None:
        assert self.cache.evict(count) == self.model.evict(count)

    @rule(dice=st.integers(1, 3))
    def retire(self, dice: int) -> None:
        if dice != 3:  # seldom, or no tree ever grows
            return
        self.cache.retire()
        self.model = ReferenceCache(self.model.hybrid, now=self.model.now)
        for user in self.users:
            user.stale = True

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "users"):
            return
        check_cache(self.cache, hybrid=self.model.hybrid)
        check_readers(self.cache, [user.node for user in self.users])
        check_pages(self.pool, self.cache, [user.pages for user in self.users])
        check_snapshots(self.slots, self.cache)
        self.compare()

    def compare(self) -> None:
        """The real cache holds exactly what the reference does, and beside it what is stale and still in use."""
        live = {self.text_of(node): node for node in self.cache.nodes() if not node.retired}
        assert {text: node.page for text, node in live.items()} == self.model.pages
        snapshots = {t: node.snapshot for t, node in live.items() if node.snapshot is not None}
        assert snapshots == self.model.snapshots
        retired = [node for node in self.cache.nodes() if node.retired]
        stale = [user for user in self.users if user.stale]
        in_use = {page for user in stale for page in user.pages[: len(user.text) // PAGE_SIZE]}
        assert {node.page for node in retired} == in_use
        # A sequence restores its hit's states when its prefill begins, which may be after the cache was retired.
        read = {self.text_of(user.node) for user in stale if user.text}
        kept = {self.text_of(node) for node in retired if node.snapshot is not None}
        assert kept == (read if self.model.hybrid else set())

    def reserve(self) -> tuple[int | None, ...]:
        """The slot for a snapshot, None without linear layers; nothing if every one is being read."""
        if not self.model.hybrid:
            return (None,)
        if self.slots.num_free:
            return (self.cache.reserve_snapshot(),)
        expected = self.model.steal_snapshot()
        try:
            slot = self.cache.reserve_snapshot()
        except NoSnapshots:
            assert expected is None
            return ()
        assert slot == expected
        return (slot,)

    def text_of(self, node: Node) -> Tokens:
        text: Tokens = ()
        while node.parent is not None:
            text = node.tokens + text
            node = node.parent
        return text
