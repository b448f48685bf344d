"""What sequences hold: pages, state slots and locks in the prefix cache; grants, growth, return.

A sequence may grow to its `reserved` pages without asking; what others may still take is `available`.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.memory.pages import PagePool
from firmtoken.runtime.memory.prefix_cache import PrefixCache
from firmtoken.runtime.memory.shortage import (
    NoPages,
    NoSequences,
    NoSnapshots,
    NoStateSlots,
)
from firmtoken.runtime.memory.snapshots import SnapshotSlots
from firmtoken.runtime.memory.states import StateSlots

SLOTS_PER_SEQUENCE = 2

Park = Callable[[tuple[tuple[int, int], ...]], None]
"""Copies states: (state slot, snapshot slot) each; raises `NotParked`."""


class NotParked(Exception):
    """The copies failed: what the snapshot slots hold is worth nothing."""


class Holdings:
    """Owns every pool; `members` are the admitted sequences."""

    def __init__(self, limits: Limits, park: Park) -> None:
        self.pages = PagePool(limits.pages)
        self.states = StateSlots(limits.state_slots)
        self.snapshots = SnapshotSlots(limits.snapshot_slots)
        self.cache = PrefixCache(limits.page_size, self.pages, self.snapshots, hybrid=limits.hybrid)
        self.members: list[Sequence] = []
        self.version = 0
        """Changes whenever something is given back or cached: only then can a refused sequence fit."""
        self._limits = limits
        self._park = park

    @property
    def available(self) -> int:
        """Pages that are free or evictable and promised to nobody."""
        promised = sum(max(0, member.reserved - len(member.pages)) for member in self.members)
        return self.pages.num_free + self.cache.evictable - promised

    def wanted(self, sequence: Sequence) -> int:
        """Pages that admission asks for (D3)."""
        output = sequence.remaining_output
        if sequence.preemptions < self._limits.max_preemptions:
            output = min(output, self._limits.output_reserve)
        return need(len(sequence.token_ids), output, self._limits.page_size)

    def admit(self, sequence: Sequence) -> None:
        """Grants what `sequence` needs; raises `NoSequences`, `NoPages` or `NoStateSlots`, changing nothing."""
        if len(self.members) >= self._limits.max_num_seqs:
            raise NoSequences(f"{len(self.members)} of {self._limits.max_num_seqs} are running")
        wanted = self.wanted(sequence)
        match = self.cache.match(sequence.token_ids)
        self.cache.lock(match.node)
        missing, available = wanted - len(match.pages), self.available
        if missing > available:
            self.cache.unlock(match.node)
            raise NoPages(f"{missing} of {wanted} pages wanted, {available} available")
        if self._limits.hybrid:
            try:
                sequence.live, sequence.shadow = self.states.take(SLOTS_PER_SEQUENCE)
            except NoStateSlots:
                self.cache.unlock(match.node)
                raise
        self.pages.share(match.pages)
        sequence.pages = match.pages
        sequence.node = match.node
        sequence.reserved = wanted
        sequence.whole = sequence.remaining_output <= self._granted_output(sequence)
        sequence.hit_tokens = len(match.pages) * self._limits.page_size
        sequence.hit_snapshot = match.snapshot
        sequence.computed = sequence.hit_tokens
        # A restored state is a page boundary's state: live and shadow alike.
        sequence.shadow_len = sequence.hit_tokens if self._limits.hybrid else 0
        sequence.target = len(sequence.token_ids)
        self.members.append(sequence)

    def can_cover(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether its pages can be made to hold `num_tokens` without preempting anybody."""
        pages = need(num_tokens, 0, self._limits.page_size)
        beyond = pages - max(len(sequence.pages), sequence.reserved)
        return beyond <= 0 or beyond <= self.available

    def cover(self, sequence: Sequence, num_tokens: int) -> None:
        """Takes the pages that `can_cover` promised, from the prefix cache if it must."""
        missing = need(num_tokens, 0, self._limits.page_size) - len(sequence.pages)
        if missing <= 0:
            return
        if self.pages.num_free < missing:
            self.cache.evict(missing - self.pages.num_free)
        sequence.pages += self.pages.take(missing)

    def release(self, sequence: Sequence) -> None:
        """Takes everything back."""
        assert sequence.node is not None
        self.members.remove(sequence)
        self.cache.unlock(sequence.node)
        self.pages.give(sequence.pages)
        if self._limits.hybrid:
            self.states.give((sequence.live, sequence.shadow))
        sequence.pages, sequence.node = (), None
        sequence.live = sequence.shadow = sequence.shadow_len = 0
        sequence.computed = sequence.reserved = 0
        sequence.hit_snapshot = None
        self.version += 1

    def offer(self, sequences: Many[Sequence]) -> None:
        """Puts what is computed into the prefix cache, as far as it can be used again; all copies in one go.

        What cannot be kept is not an error: it is computed again when somebody asks for it.
        """
        if not self._limits.caching:
            return
        offers = [(sequence, *self._offerable(sequence)) for sequence in sequences]
        taken: list[tuple[Sequence, int, int | None]] = []
        for sequence, num_tokens, useful in offers:
            if not useful:
                continue
            try:
                slot = self.cache.reserve_snapshot() if self._limits.hybrid else None
            except NoSnapshots:
                break
            taken.append((sequence, num_tokens, slot))
        moves = tuple((sequence.shadow, slot) for sequence, _, slot in taken if slot is not None)
        try:
            if moves:
                self._park(moves)
        except NotParked:
            for _, slot in moves:
                self.snapshots.give(slot)
            return
        for sequence, num_tokens, slot in taken:
            self._insert(sequence, num_tokens, slot)

    def retire_cache(self) -> None:
        """Nobody finds what is cached by now, nor what those who run add to it; they keep what they hold."""
        self.cache.retire()
        self.version += 1

    def _granted_output(self, sequence: Sequence) -> int:
        """Output tokens that its reserved pages hold."""
        return sequence.reserved * self._limits.page_size - len(sequence.token_ids)

    def _offerable(self, sequence: Sequence) -> tuple[int, bool]:
        page_size = self._limits.page_size
        assert sequence.node is not None
        if sequence.node.retired:
            return 0, False
        num_tokens = sequence.shadow_len if self._limits.hybrid else sequence.computed
        num_tokens -= num_tokens % page_size
        text = sequence.token_ids[:num_tokens]
        return num_tokens, num_tokens > 0 and not self.cache.covers(text)

    def _insert(self, sequence: Sequence, num_tokens: int, slot: int | None) -> None:
        assert sequence.node is not None
        num_pages = num_tokens // self._limits.page_size
        node = self.cache.insert(sequence.token_ids[:num_tokens], sequence.pages[:num_pages], slot)
        self.cache.lock(node)
        self.cache.unlock(sequence.node)
        sequence.node = node
        self._adopt(sequence, self.cache.pages_of(node))
        self.version += 1

    def _adopt(self, sequence: Sequence, cached: tuple[int, ...]) -> None:
        """Holds the cached pages instead of its own equal ones: what a sequence locks, it holds."""
        own = sequence.pages[: len(cached)]
        if own != cached:
            self.pages.share(cached)
            self.pages.give(own)
            sequence.pages = cached + sequence.pages[len(cached) :]
