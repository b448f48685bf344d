"""A device that only remembers texts: wrong pages or states show as a wrong mark, as they would as wrong tokens."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Piece

VOCAB = 12
EMPTY_TEXT = 0x9E3779B97F4A7C15
LOST = 1


def extended(text: int, token: int) -> int:
    """The mark of a text with one more token; two texts share one as seldom as 64-bit hashes do."""
    return ((text ^ token) * 0xD6E8FEB86659FD93 + 0x632BE59BD9B4E019) & (2**64 - 1)


def drawn(text: int) -> int:
    """The token that this model says after a text."""
    return (text >> 40) % VOCAB


@dataclass(slots=True)
class TextDevice:
    """Each page, state and snapshot remembers the mark of the text that it was computed from."""

    limits: Limits
    pages: list[int] = field(init=False)
    states: list[int] = field(init=False)
    snapshots: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.pages = [0] * self.limits.pages
        self.states = [0] * max(1, self.limits.state_slots)
        self.snapshots = [0] * self.limits.snapshot_slots

    def park(self, moves: tuple[tuple[int, int], ...]) -> None:
        for state, snapshot in moves:
            self.snapshots[snapshot] = self.states[state]

    def prefill(self, piece: Piece, marks: list[int]) -> int:
        """Computes a piece and says the mark of the text up to its end; fails if what it rests on is something else."""
        sequence, page_size = piece.sequence, self.limits.page_size
        if piece.first:
            for index in range(piece.start // page_size):
                assert self.pages[sequence.pages[index]] == marks[(index + 1) * page_size]
            if self.limits.hybrid:
                hit = sequence.hit_snapshot
                state = EMPTY_TEXT if hit is None else self.snapshots[hit]
                self.states[sequence.live] = self.states[sequence.shadow] = state
        self.check(sequence, piece.start, marks)
        for index in range(piece.start // page_size, need(piece.end, 0, page_size)):
            self.pages[sequence.pages[index]] = marks[min((index + 1) * page_size, piece.end)]
        if self.limits.hybrid:
            self.states[sequence.live] = marks[piece.end]
            if piece.boundary:
                self.states[sequence.shadow] = marks[piece.boundary]
        return marks[piece.end]

    def decode(self, sequence: Sequence, marks: list[int]) -> int:
        """The same for one token, the text's last; its KV goes into its last page."""
        start, page_size = len(marks) - 2, self.limits.page_size
        self.check(sequence, start, marks)
        self.pages[sequence.pages[start // page_size]] = marks[start + 1]
        if self.limits.hybrid:
            self.states[sequence.live] = marks[start + 1]
            if (start + 1) % page_size == 0:
                self.states[sequence.shadow] = marks[start + 1]
        return marks[start + 1]

    def check(self, sequence: Sequence, start: int, marks: list[int]) -> None:
        """What stands before token `start` in memory is this text."""
        if start:
            assert self.pages[sequence.pages[(start - 1) // self.limits.page_size]] == marks[start]
        if self.limits.hybrid:
            assert self.states[sequence.live] == marks[start]

    def lose_all_but(self, running: Iterable[Sequence]) -> None:
        """Something went wrong: only what these have computed, and hits that they have yet to restore, stay."""
        pages: set[int] = set()
        states: set[int] = set()
        snapshots: set[int | None] = set()
        for sequence in running:
            pages.update(sequence.pages)
            states.update((sequence.live, sequence.shadow))
            if sequence.computed == sequence.hit_tokens:
                snapshots.add(sequence.hit_snapshot)
        for memory, kept in (
            (self.pages, pages),
            (self.states, states),
            (self.snapshots, snapshots),
        ):
            memory[:] = [mark if index in kept else LOST for index, mark in enumerate(memory)]
