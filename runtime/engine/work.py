"""What a step of the engine works on: a span of prompt pieces, or a batch of one token each (D7)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.sequence import Sequence

PrefillProgram = Literal["prefill", "extend"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens [start, end) of a sequence's text."""

    sequence: Sequence
    start: int
    end: int
    final: bool
    """Its last token is the text's last: it draws a token."""
    boundary: int
    """Tokens that the shadow state covers afterwards; 0 = no page boundary in this piece."""

    @property
    def first(self) -> bool:
        """Nothing of this admission was computed before: states are restored or zeroed."""
        return self.start == self.sequence.hit_tokens


@dataclass(slots=True, kw_only=True)
class Span:
    """Pieces that go through the layers together, in the order of their rows."""

    program: PrefillProgram
    pieces: tuple[Piece, ...]
    dropped: set[int] = field(default_factory=set)
    """Request ids that left while the span was open; their rows count for nothing from the next unit on."""

    @property
    def num_tokens(self) -> int:
        """Rows of the span."""
        return sum(piece.end - piece.start for piece in self.pieces)

    @property
    def kept(self) -> tuple[Piece, ...]:
        """Pieces of sequences that are still there."""
        return tuple(p for p in self.pieces if p.sequence.request_id not in self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """The last token of each of these sequences, padded to a planned size."""

    sequences: tuple[Sequence, ...]
    size: int
    ahead: bool = False
    """Launched while the same sequences' step before it is under way: its tokens are still on the device."""


def form_span(waiting: Iterable[Sequence], limits: Limits) -> Span:
    """The next span, first come first; `waiting` have tokens to compute and are not empty."""
    pieces = _cut(waiting, limits)
    head = pieces[0]
    short = head.end - head.start < _on_demand_below(head.sequence, limits)
    # Whoever waits behind it has no say: several short ones go one by one, each fetches only what it routes to.
    if limits.offload and short and head.first and head.final:
        return Span(program="extend", pieces=(head,))
    return Span(program="prefill", pieces=pieces)


def _cut(waiting: Iterable[Sequence], limits: Limits) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    left = limits.prefill_span
    for sequence in waiting:
        end = min(sequence.target, sequence.computed + left)
        final = end == sequence.target
        if not final:
            end -= end % limits.page_size
        if end <= sequence.computed:
            break
        pieces.append(_piece(sequence, end, limits, final=final))
        left -= end - sequence.computed
        if not final or left == 0:
            break
    assert pieces, "a span holds at least one page"
    return tuple(pieces)


def _piece(sequence: Sequence, end: int, limits: Limits, *, final: bool) -> Piece:
    # A hit never covers the last token, so a snapshot there would serve nobody.
    last_boundary = (end - 1 if final else end) // limits.page_size * limits.page_size
    return Piece(
        sequence=sequence,
        start=sequence.computed,
        end=end,
        final=final,
        boundary=last_boundary if last_boundary > sequence.computed else 0,
    )


def _on_demand_below(sequence: Sequence, limits: Limits) -> int:
    return limits.on_demand_warm if sequence.hit_tokens else limits.on_demand_cold
