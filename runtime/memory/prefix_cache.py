"""The prefix cache: a radix tree whose digits are whole pages of token ids (D4).

A node stands for one page after its parent's and owns one reference to it. With linear layers a node may also own
a snapshot slot, and a hit ends at a snapshot: pages that lead to no snapshot are of no use and leave the tree.

`retire` turns its back on all that is cached: no match finds a retired node, and it is gone when its last user is.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from firmtoken.runtime.memory.pages import SENTINEL_PAGE, PagePool
from firmtoken.runtime.memory.shortage import NoSnapshots
from firmtoken.runtime.memory.snapshots import SnapshotSlots


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """One cached page."""

    parent: "Node | None"
    tokens: tuple[int, ...]
    page: int
    depth: int
    """Pages from the root to the end of this one."""
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)
    users: int = 0
    """Locks on this node and below: its page is in use."""
    readers: int = 0
    """Locks on exactly this node: its snapshot is in use."""
    touched: int = 0
    """When a match or an insertion last came by."""
    snapshot: int | None = None
    snapshot_used: int = 0
    """When the snapshot was made or last ended a match."""
    retired: bool = False
    """No match ends here any more; who has locked it must not insert what it computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The longest usable prefix; the root and no pages where nothing matches."""

    node: Node
    pages: tuple[int, ...]
    snapshot: int | None
    """Where the states at its end are; None without linear layers or without a match."""


class PrefixCache:
    """Owns references to pages of `pool` and slots of `snapshots`."""

    def __init__(
        self, page_size: int, pool: PagePool, snapshots: SnapshotSlots, *, hybrid: bool
    ) -> None:
        self.root = Node(parent=None, tokens=(), page=SENTINEL_PAGE, depth=0)
        self.evictable = 0
        """Pages that nobody but the cache holds."""
        self._page_size = page_size
        self._pool = pool
        self._snapshots = snapshots
        self._hybrid = hybrid
        self._owners: dict[int, Node] = {}  # snapshot slot -> node
        self._leaves: set[Node] = set()
        self._retired_roots: list[Node] = []
        self._now = 0

    @property
    def owners(self) -> Mapping[int, Node]:
        """Which node owns each snapshot slot that the cache has taken."""
        return MappingProxyType(self._owners)

    @property
    def leaves(self) -> frozenset[Node]:
        """Nodes without children, the roots not counted."""
        return frozenset(self._leaves)

    def match(self, tokens: Sequence[int]) -> Match:
        """The deepest usable node; never covers the last token."""
        self._now += 1
        path = self._walk(tokens, (len(tokens) - 1) // self._page_size)
        while self._hybrid and path and path[-1].snapshot is None:
            path.pop()
        for node in path:
            node.touched = self._now
        if not path:
            return Match(node=self.root, pages=(), snapshot=None)
        path[-1].snapshot_used = self._now
        return Match(
            node=path[-1],
            pages=tuple(node.page for node in path),
            snapshot=path[-1].snapshot,
        )

    def covers(self, tokens: Sequence[int]) -> bool:
        """Whether a match could end exactly here: inserting the same again adds nothing."""
        num_pages = len(tokens) // self._page_size
        path = self._walk(tokens, num_pages)
        if len(path) < num_pages:
            return False
        return not self._hybrid or (num_pages > 0 and path[-1].snapshot is not None)

    def insert(self, tokens: Sequence[int], pages: Sequence[int], snapshot: int | None) -> Node:
        """Cache whole pages; takes a reference to those that are new, and the slot of `snapshot`.

        Pages already cached stay as they are; the caller should go over to them if it locks the node.
        """
        assert len(tokens) == len(pages) * self._page_size and pages
        assert (snapshot is not None) == self._hybrid
        self._now += 1
        node = self.root
        for index, page in enumerate(pages):
            key = self._key(tokens, index)
            node = node.children.get(key) or self._append(node, key, page)
            node.touched = self._now
        if snapshot is not None:
            self._keep(node, snapshot)
        return node

    def pages_of(self, node: Node) -> tuple[int, ...]:
        """Pages from the root to here."""
        return tuple(step.page for step in self._up(node))[::-1]

    def lock(self, node: Node) -> None:
        """A sequence uses the pages down to here; none of them is evicted until `unlock`."""
        node.readers += 1
        for step in self._up(node):
            self.evictable -= step.users == 0
            step.users += 1

    def unlock(self, node: Node) -> None:
        """The other end of `lock`."""
        assert node.readers > 0
        node.readers -= 1
        for step in self._up(node):
            step.users -= 1
            self.evictable += step.users == 0
        if node.retired:
            self._drop_retired(node)
        else:
            self._prune(node)

    def evict(self, count: int) -> int:
        """Free pages nobody uses, least recently touched first, until `count` are freed; says how many were.

        Pages that no longer lead to a snapshot go with them.
        """
        before = self.evictable
        heap = [(node.touched, node.depth, node) for node in self._leaves if node.users == 0]
        heapq.heapify(heap)
        while heap and before - self.evictable < count:
            parent = self._prune(self._remove(heapq.heappop(heap)[2]))
            if parent.parent is not None and not parent.children and parent.users == 0:
                heapq.heappush(heap, (parent.touched, parent.depth, parent))
        return before - self.evictable

    def reserve_snapshot(self) -> int:
        """A slot to copy states into; takes the least recently used one that nobody reads, if none is free."""
        if self._snapshots.num_free == 0:
            idle = [node for node in self._owners.values() if node.readers == 0]
            if not idle:
                raise NoSnapshots(f"all {self._snapshots.num_slots} snapshot slots are being read")
            oldest = min(idle, key=lambda node: node.snapshot_used)
            self._forget_snapshot(oldest)
            self._prune(oldest)
        return self._snapshots.take()

    def retire(self) -> None:
        """What is cached can no longer be trusted: begins a new tree, and frees at once what nobody uses.

        Sequences keep what they have locked until they unlock it.
        """
        old, self.root = self.root, Node(parent=None, tokens=(), page=SENTINEL_PAGE, depth=0)
        self._retired_roots = [root for root in self._retired_roots if root.children]
        self._retired_roots.append(old)
        old.retired = True
        for node in reversed(tuple(_below(old))):  # children first
            node.retired = True
            if node.users == 0:
                self._remove(node)
            elif node.snapshot is not None and node.readers == 0:
                self._forget_snapshot(node)

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first; those that are retired and still in use too."""
        for root in (self.root, *self._retired_roots):
            yield from _below(root)

    def _walk(self, tokens: Sequence[int], max_pages: int) -> list[Node]:
        path: list[Node] = []
        node = self.root
        for index in range(max_pages):
            child = node.children.get(self._key(tokens, index))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def _key(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(tokens[index * self._page_size : (index + 1) * self._page_size])

    def _up(self, node: Node) -> Iterator[Node]:
        while node.parent is not None:
            yield node
            node = node.parent

    def _append(self, parent: Node, key: tuple[int, ...], page: int) -> Node:
        # A page that others hold is in a tree already, perhaps a retired one: it could not be evicted from here.
        assert self._pool.references_to(page) == 1, f"page {page} is not the inserter's own"
        node = Node(parent=parent, tokens=key, page=page, depth=parent.depth + 1)
        self._pool.share((page,))
        parent.children[key] = node
        self._leaves.discard(parent)
        self._leaves.add(node)
        self.evictable += 1
        return node

    def _keep(self, node: Node, snapshot: int) -> None:
        node.snapshot_used = self._now
        if node.snapshot is not None:
            self._snapshots.give(snapshot)
            return
        node.snapshot = snapshot
        self._owners[snapshot] = node

    def _forget_snapshot(self, node: Node) -> None:
        assert node.snapshot is not None
        del self._owners[node.snapshot]
        self._snapshots.give(node.snapshot)
        node.snapshot = None

    def _prune(self, node: Node) -> Node:
        """Drops pages that lead to no snapshot, from here up; the node that stays."""
        while (
            self._hybrid
            and node.parent is not None
            and not (node.children or node.users or node.snapshot is not None)
        ):
            node = self._remove(node)
        return node

    def _drop_retired(self, node: Node) -> None:
        """Frees what the last user of a retired node left behind, from here up."""
        if node.snapshot is not None and node.readers == 0:
            self._forget_snapshot(node)
        while node.parent is not None and node.users == 0:
            node = self._remove(node)

    def _remove(self, node: Node) -> Node:
        """Takes a leaf out of the tree; its parent."""
        assert not node.children and node.users == 0 and node.parent is not None
        if node.snapshot is not None:
            self._forget_snapshot(node)
        parent = node.parent
        del parent.children[node.tokens]
        self._leaves.remove(node)
        if parent.parent is not None and not parent.children:
            self._leaves.add(parent)
        self._pool.give((node.page,))
        self.evictable -= 1
        return parent


def _below(root: Node) -> Iterator[Node]:
    """Every node under `root`, parents first."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
