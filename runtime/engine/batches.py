"""`Batches`: the batch of every launch of a span or a decode step.

Rows of a span are cut into chunks of `moe_chunk`, those into tiles of `mixer_tile`. A launch's batch is found by its
unit and place: (`tile`, c, t), (`tokens`, c) or (`span`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Piece, Span
from firmtoken.runtime.kernels.batch import Batch, Draw, Segment
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.memory.pages import SENTINEL_PAGE

Key = tuple[str | int, ...]
SPAN: Key = ("span",)
AnyBatch = Batch | DeviceRows
Batches = dict[Key, AnyBatch]

IGNORED = Draw(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0, position=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How many rows each chunk and tile of a launch has; equal cuts run the same bound program."""

    chunks: tuple[tuple[int, ...], ...]
    """Rows of each tile, by chunk."""
    num_seqs: int

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles of each chunk."""
        return tuple(len(tiles) for tiles in self.chunks)


def cut_rows(num_tokens: int, num_seqs: int, *, chunk: int, tile: int) -> Cut:
    """Full chunks of full tiles, then the rest."""
    chunks = []
    for first in range(0, num_tokens, chunk):
        rows = min(chunk, num_tokens - first)
        chunks.append(tuple(min(tile, rows - at) for at in range(0, rows, tile)))
    return Cut(chunks=tuple(chunks), num_seqs=num_seqs)


class BatchBuilder:
    """Makes batches; keeps the page table of each running sequence as a tensor until it changes."""

    def __init__(self, page_size: int, *, hybrid: bool) -> None:
        self._page_size = page_size
        self._hybrid = hybrid
        self._tables: dict[int, tuple[tuple[int, ...], torch.Tensor]] = {}

    def forget(self, running: set[int]) -> None:
        """Drops page tables of sequences that are gone."""
        for request_id in self._tables.keys() - running:
            del self._tables[request_id]

    def decode(self, decode: Decode) -> Batch:
        """One row a sequence, padded with rows that point at the sentinel."""
        token_ids, positions, token_slots = [], [], []
        segments, draws = [], []
        for row, sequence in enumerate(decode.sequences):
            at = sequence.computed
            token_ids.append(sequence.token_ids[at])
            positions.append(at)
            token_slots.append(self._token_slot(sequence, at))
            boundary = int(self._hybrid and (at + 1) % self._page_size == 0)
            segments.append(self._segment(sequence, row, 1, at, boundary))
            draws.append(_draw(sequence))
        padding = decode.size - len(segments)
        return Batch(
            rows=decode.size,
            real_rows=len(segments),
            token_ids=torch.tensor(token_ids + [0] * padding),
            positions=torch.tensor(positions + [0] * padding),
            token_slots=torch.tensor(token_slots + [SENTINEL_PAGE * self._page_size] * padding),
            segments=tuple(segments),
            draws=tuple(draws),
        )

    def span(self, span: Span, cut: Cut) -> Batches:
        """Batches of every tile and chunk, and of the span as a whole."""
        rows = SpanRows(span, self._page_size)
        batches: Batches = {SPAN: self._whole(span, rows)}
        first = 0
        for c, tiles in enumerate(cut.chunks):
            chunk_first = first
            for t, num_rows in enumerate(tiles):
                batches["tile", c, t] = self._rows(rows, first, first + num_rows)
                first += num_rows
            chunk = self._rows(rows, chunk_first, first)
            batches["tokens", c] = replace(chunk, copies=rows.last_rows(chunk_first, first))
        return batches

    def moves(self, moves: tuple[tuple[int, ...], ...]) -> Batches:
        """For `park`: no rows, only copies of states."""
        nothing = torch.empty(0, dtype=torch.int64)
        batch = Batch(
            rows=0,
            real_rows=0,
            token_ids=nothing,
            positions=nothing,
            token_slots=nothing,
            segments=(),
            moves=moves,
        )
        return {SPAN: batch}

    def _whole(self, span: Span, rows: "SpanRows") -> Batch:
        whole = self._rows(rows, 0, rows.num_rows)
        return replace(
            whole,
            moves=tuple(restored(piece) for piece in span.pieces if piece.first and self._hybrid),
            draws=tuple(_draw(piece.sequence) if piece.final else IGNORED for piece in span.pieces),
        )

    def _rows(self, rows: "SpanRows", first: int, end: int) -> Batch:
        segments = []
        for piece, piece_first in rows.kept:
            low = max(first, piece_first)
            high = min(end, piece_first + piece.end - piece.start)
            if low < high:
                start = piece.start + low - piece_first
                stop = start + high - low
                inside = self._hybrid and start < piece.boundary <= stop
                boundary = piece.boundary - start if inside else 0
                segments.append(
                    self._segment(piece.sequence, low - first, high - low, start, boundary)
                )
        return Batch(
            rows=end - first,
            real_rows=end - first,
            token_ids=rows.token_ids[first:end],
            positions=rows.positions[first:end],
            token_slots=rows.token_slots[first:end],
            segments=tuple(segments),
        )

    def _segment(
        self, sequence: Sequence, first: int, rows: int, start: int, boundary: int
    ) -> Segment:
        return Segment(
            first=first,
            rows=rows,
            start=start,
            pages=self._table(sequence)[: need(start, rows, self._page_size)],
            live=sequence.live,
            shadow=sequence.shadow,
            boundary=boundary,
        )

    def _table(self, sequence: Sequence) -> torch.Tensor:
        pages, table = self._tables.get(sequence.request_id, (None, None))
        if table is None or pages is not sequence.pages:
            table = torch.tensor(sequence.pages)
            self._tables[sequence.request_id] = (sequence.pages, table)
        return table

    def _token_slot(self, sequence: Sequence, position: int) -> int:
        page = sequence.pages[position // self._page_size]
        return page * self._page_size + position % self._page_size


class SpanRows:
    """The rows of a span, all chunks together; rows of dropped sequences point at the sentinel."""

    def __init__(self, span: Span, page_size: int) -> None:
        token_ids: list[int] = []
        positions: list[torch.Tensor] = []
        token_slots: list[torch.Tensor] = []
        self.kept: list[tuple[Piece, int]] = []
        self._last: list[int] = []
        for piece in span.pieces:
            first = len(token_ids)
            token_ids += piece.sequence.token_ids[piece.start : piece.end]
            here = torch.arange(piece.start, piece.end)
            positions.append(here)
            if piece.sequence.request_id in span.dropped:
                token_slots.append(torch.zeros_like(here))
            else:
                self.kept.append((piece, first))
                pages = torch.tensor(piece.sequence.pages)[here // page_size]
                token_slots.append(pages * page_size + here % page_size)
            self._last.append(len(token_ids) - 1)
        self.token_ids = torch.tensor(token_ids)
        self.positions = torch.cat(positions)
        self.token_slots = torch.cat(token_slots)
        self.num_rows = len(token_ids)

    def last_rows(self, first: int, end: int) -> tuple[tuple[int, int], ...]:
        """(row of the chunk, piece) for each piece whose last row is in rows [first, end)."""
        return tuple(
            (row - first, piece) for piece, row in enumerate(self._last) if first <= row < end
        )


def _draw(sequence: Sequence) -> Draw:
    sampling = sequence.sampling
    return Draw(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        position=len(sequence.token_ids),
    )


def restored(piece: Piece) -> tuple[int, int, int]:
    """Snapshot (-1: none, zeros), live and shadow slot: where the state comes from before the piece's first row."""
    sequence = piece.sequence
    snapshot = -1 if sequence.hit_snapshot is None else sequence.hit_snapshot
    return snapshot, sequence.live, sequence.shadow


def drawn_tokens(span: Span, tokens: list[int]) -> Mapping[int, int]:
    """Request id -> token, for the pieces that end a text."""
    return {
        piece.sequence.request_id: token
        for piece, token in zip(span.pieces, tokens, strict=True)
        if piece.final
    }
