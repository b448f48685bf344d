"""What must hold between any two steps of the scheduler, recomputed from scratch: the check of the debug mode.

Knows no torch. It trusts no counter: whatever is stored twice must agree.
"""

from collections import Counter
from collections.abc import Iterable

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.memory.pages import SENTINEL_PAGE, PagePool
from firmtoken.runtime.memory.prefix_cache import Node, PrefixCache
from firmtoken.runtime.memory.snapshots import SnapshotSlots
from firmtoken.runtime.memory.states import PADDING_STATE, StateSlots


class InvariantBroken(Exception):
    """Our bug: one sentence that names what does not hold."""


def check_invariants(scheduler: Scheduler) -> None:
    """Raise `InvariantBroken` for the first thing that does not hold; call it between steps."""
    holdings, limits = scheduler.holdings, scheduler.limits
    members = holdings.members
    _check_places(scheduler)
    for sequence in scheduler.waiting:
        _check_waiting(sequence, limits)
    for member in members:
        _check_member(member, holdings.cache, limits)
    check_cache(holdings.cache, hybrid=limits.hybrid)
    check_readers(holdings.cache, [member.node for member in members if member.node is not None])
    check_pages(holdings.pages, holdings.cache, [member.pages for member in members])
    _require(holdings.available >= 0, f"{-holdings.available} pages more are promised than exist")
    pairs = [(member.live, member.shadow) for member in members]
    check_states(holdings.states, pairs if limits.hybrid else [])
    check_snapshots(holdings.snapshots, holdings.cache)


def check_pages(pool: PagePool, cache: PrefixCache, held: Iterable[tuple[int, ...]]) -> None:
    """Every reference has its holder, and the free list is what nobody holds; `held` are the sequences' pages."""
    holders: Counter[int] = Counter()
    for pages in held:
        holders.update(pages)
    cached = Counter(node.page for node in cache.nodes())
    for page, nodes in cached.items():
        if nodes > 1:
            raise InvariantBroken(f"page {page} is cached {nodes} times")
    for page, count in holders.items():
        if count > 1 and page not in cached:
            raise InvariantBroken(f"{count} sequences share page {page}, which is not cached")
    holders.update(cached)
    _require(SENTINEL_PAGE not in holders, "somebody holds the sentinel page")
    for page in range(pool.num_usable + 1):
        references = pool.references_to(page)
        if references != holders[page]:
            raise InvariantBroken(
                f"page {page} has {references} references and {holders[page]} holders"
            )
    usable = range(SENTINEL_PAGE + 1, SENTINEL_PAGE + 1 + pool.num_usable)
    _check_free("pages", pool.free, [page for page in usable if page not in holders])


def check_states(states: StateSlots, pairs: Iterable[tuple[int, int]]) -> None:
    """Two slots a sequence, each somebody's or free."""
    taken = Counter(slot for pair in pairs for slot in pair)
    _require(PADDING_STATE not in taken, "a sequence has the state slot of padded rows")
    for slot, owners in taken.items():
        _require(owners == 1, f"state slot {slot} is used {owners} times")
    slots = range(PADDING_STATE + 1, PADDING_STATE + 1 + states.num_usable)
    _check_free("state slots", states.free, [slot for slot in slots if slot not in taken])


def check_snapshots(snapshots: SnapshotSlots, cache: PrefixCache) -> None:
    """A snapshot slot belongs to one node or is free: between steps nobody else has one."""
    slots = range(snapshots.num_slots)
    free = [slot for slot in slots if slot not in cache.owners]
    _check_free("snapshot slots", snapshots.free, free)


def check_cache(cache: PrefixCache, *, hybrid: bool) -> None:
    """The tree's counters, recomputed; nothing in it that could never be used again."""
    nodes = tuple(cache.nodes())
    useful: set[Node] = set()
    for node in reversed(nodes):  # children first
        _check_node(node)
        if node.snapshot is not None or any(child in useful for child in node.children.values()):
            useful.add(node)
        if hybrid and node.users == 0 and node not in useful:
            raise InvariantBroken(f"page {node.page} has no user and leads to no snapshot")
    idle = sum(node.users == 0 for node in nodes)
    _require(cache.evictable == idle, f"{cache.evictable} pages count as evictable, {idle} are")
    leaves = frozenset(node for node in nodes if not node.children)
    _require(cache.leaves == leaves, f"{len(cache.leaves)} leaves are known, {len(leaves)} exist")
    owners = {node.snapshot: node for node in nodes if node.snapshot is not None}
    owned = sum(node.snapshot is not None for node in nodes)
    _require(owned == len(owners), "two nodes own one snapshot slot")
    _require(cache.owners == owners, "the owners of snapshots are not the nodes that have them")


def check_readers(cache: PrefixCache, locked: Iterable[Node]) -> None:
    """Each lock is a sequence's; `locked` is what sequences have locked."""
    locks = Counter(node for node in locked if node.parent is not None)
    for node in cache.nodes():
        sequences = locks.pop(node, 0)
        if node.readers != sequences:
            raise InvariantBroken(
                f"page {node.page} has {node.readers} locks of {sequences} sequences"
            )
    _require(not locks, f"{locks.total()} sequences locked pages that left the cache")


def _check_places(scheduler: Scheduler) -> None:
    """Every sequence is in one place; the queue is in order; nothing runs that should not."""
    waiting, members, limits = scheduler.waiting, scheduler.holdings.members, scheduler.limits
    places = Counter(sequence.request_id for sequence in (*waiting, *members))
    for request_id, count in places.items():
        _require(count == 1, f"request {request_id} is in {count} places")
    known = {sequence.request_id for sequence in scheduler.sequences}
    _require(not known - places.keys(), f"requests {sorted(known - places.keys())} are nowhere")
    _require(not places.keys() - known, f"requests {sorted(places.keys() - known)} have ended")
    order = [(sequence.preemptions == 0, sequence.arrival) for sequence in waiting]
    _require(order == sorted(order), "the queue is out of order")
    arrivals = [member.arrival for member in members]
    _require(arrivals == sorted(arrivals), "the members are out of order")
    _require(
        len(members) <= limits.max_num_seqs,
        f"{len(members)} sequences run, {limits.max_num_seqs} may",
    )


def _check_waiting(sequence: Sequence, limits: Limits) -> None:
    name = f"waiting request {sequence.request_id}"
    _require(sequence.phase is Phase.WAITING, f"{name} is in {sequence.phase.value}")
    holds = sequence.pages or sequence.node or sequence.live or sequence.shadow
    _require(not holds, f"{name} holds something")
    _require(sequence.computed == sequence.shadow_len == 0, f"{name} has committed tokens")
    _require(
        sequence.passed <= limits.max_passes,
        f"{name} was passed {sequence.passed} times, {limits.max_passes} are allowed",
    )
    _check_preemptions(sequence, limits)


def _check_member(member: Sequence, cache: PrefixCache, limits: Limits) -> None:
    name = f"request {member.request_id}"
    length = len(member.token_ids)
    if member.phase is Phase.PREFILL:
        _require(member.computed < member.target <= length, f"{name} prefills what it has")
    else:
        _require(member.phase is Phase.DECODE, f"{name} runs in phase {member.phase.value}")
        _require(member.computed == length - 1, f"{name} decodes at {member.computed} of {length}")
    _require(
        need(member.computed, 0, limits.page_size) <= len(member.pages),
        f"{name} has {member.computed} committed tokens in {len(member.pages)} pages",
    )
    _require(
        member.shadow_len % limits.page_size == 0 and member.shadow_len <= member.computed,
        f"the shadow state of {name} covers {member.shadow_len} of {member.computed} tokens",
    )
    _require(limits.hybrid or not member.shadow_len, f"{name} has a shadow state")
    node = member.node
    _require(node is not None, f"{name} has no place in the cache")
    if node is not None:
        _require(
            member.pages[: node.depth] == cache.pages_of(node),
            f"{name} does not hold the pages that it locked",
        )
    _check_preemptions(member, limits)


def _check_preemptions(sequence: Sequence, limits: Limits) -> None:
    _require(
        sequence.preemptions <= limits.max_preemptions,
        f"request {sequence.request_id} gave way {sequence.preemptions} times, {limits.max_preemptions} are allowed",
    )


def _check_node(node: Node) -> None:
    users = node.readers + sum(child.users for child in node.children.values())
    if node.users != users:
        raise InvariantBroken(f"page {node.page} counts {node.users} users and has {users}")
    if node.retired and not users:
        raise InvariantBroken(f"page {node.page} is retired and has no user")
    for key, child in node.children.items():
        if child.parent is not node or child.tokens != key or child.depth != node.depth + 1:
            raise InvariantBroken(f"page {child.page} hangs in the wrong place")


def _check_free(what: str, free: tuple[int, ...], expected: list[int]) -> None:
    _require(len(set(free)) == len(free), f"the free list of {what} has one twice")
    lost = sorted(set(expected) - set(free))
    _require(not lost, f"{what} {lost} belong to nobody and are not free")
    doubly = sorted(set(free) - set(expected))
    _require(not doubly, f"{what} {doubly} are free and belong to somebody")


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantBroken(sentence)
