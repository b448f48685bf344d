"""`DeviceBatches`: the batches of a CUDA device, at the fixed addresses that the plan has for them.

The host writes into pinned memory of the same layout, and one copy on the current stream brings it over. A decode step
and an open span have bytes of their own; whoever writes waits until the copy before has been made. The token ids of a
decode step that runs ahead are those that the step before it draws: they go from there to here on the device.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Items
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import torch

from firmtoken.compiler.batch_layout import BatchLayout, batch_layouts
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.batches import SPAN, Batches, Cut, Key, restored
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.views import DTYPES, Views
from firmtoken.runtime.engine.work import Decode, Piece, Span
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.sample.device_draws import DeviceDraws

NUMPY = {"fp32": np.float32, "int32": np.int32, "int64": np.int64}
PAGES = "pages"
NOTHING = (-1, -1, 0)
"""No state is restored."""
DRAWS = ("temperature", "top_p", "top_k", "min_p", "seed", "position")


class Region:
    """The bytes of one batch: on the device, and pinned on the host for writing."""

    def __init__(self, device: torch.Tensor, layout: BatchLayout) -> None:
        self._host = torch.zeros(layout.bytes, dtype=torch.uint8, pin_memory=device.is_cuda)
        self._device = device[: layout.bytes]
        raw = self._host.numpy()
        self.host = {
            name: raw[row.offset : row.offset + row.bytes].view(NUMPY[row.dtype]).reshape(row.shape)
            for name, row in layout.fields.items()
        }
        """For writing."""
        self.device = {
            name: self._device[row.offset : row.offset + row.bytes]
            .view(DTYPES[row.dtype])
            .view(row.shape)
            for name, row in layout.fields.items()
        }
        """What kernels read."""
        self._pages_at = layout.fields[PAGES].offset
        self._tables: dict[int, tuple[int, ...]] = {}  # row -> the page table that is there
        self._dirty = True
        self._sent = torch.cuda.Event() if device.is_cuda else None  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        """Returns when the last copy has been made: from then on its place may be written again."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self) -> None:
        """One copy, with the page tables where one of them is new."""
        end = self._host.numel() if self._dirty else self._pages_at
        self._dirty = False
        with torch.inference_mode():  # whoever made the view first may have been in it
            self._device[:end].copy_(self._host[:end], non_blocking=True)
        if self._sent is not None:
            self._sent.record()

    def write_table(self, row: int, pages: tuple[int, ...]) -> None:
        """The page table of a sequence; it is another tuple when it has changed."""
        if self._tables.get(row) is not pages:
            self._tables[row] = pages
            self.host[PAGES][row, : len(pages)] = pages
            self._dirty = True

    def write_draw(self, row: int, sequence: Sequence, *, unseen: int = 0) -> None:
        """How the sequence's next token is drawn; `unseen`: tokens before it that the host does not have yet."""
        host, sampling = self.host, sequence.sampling
        host["temperature"][row] = sampling.temperature
        host["top_p"][row] = sampling.top_p
        host["top_k"][row] = sampling.top_k
        host["min_p"][row] = sampling.min_p
        host["seed"][row] = sampling.seed
        host["position"][row] = len(sequence.token_ids) + unseen

    def draws(self, count: int) -> DeviceDraws:
        """Of the first sequences."""
        return DeviceDraws(**{name: self.device[name][:count] for name in DRAWS})


class DeviceBatches:
    """With the face of `batches.BatchBuilder`."""

    def __init__(self, plan: Plan, views: Views) -> None:
        schedule, cache = plan.schedule, plan.kv_cache
        decode, span = batch_layouts(
            rows=schedule.moe_chunk,
            tile=schedule.mixer_tile,
            sequences=schedule.max_num_seqs,
            positions=int(plan.model.geometry["max_position_embeddings"]),
            page_size=cache.page_size,
        )
        self._decode = Region(views.tensor(Value("decode.batch")), decode)
        self._span = Region(views.tensor(Value("span.batch")), span)
        self._page_size = cache.page_size
        self._tile = schedule.mixer_tile
        self._views = views
        self._hybrid = "linear" in plan.model.layer_kinds
        self._sized: dict[int, DeviceRows] = {}
        every = self._decode.host["first_rows"]
        every[:] = np.arange(len(every))

    def forget(self, running: set[int]) -> None:
        """Page tables are kept by row, not by sequence."""

    def decode(self, decode: Decode) -> DeviceRows:
        """One row a sequence, padded with rows that point at the sentinel."""
        host, size, page_size = self._decode.host, decode.size, self._page_size
        unseen = int(decode.ahead)
        self._decode.wait()
        for row, sequence in enumerate(decode.sequences):
            at = sequence.computed + unseen
            host["token_ids"][row] = 0 if decode.ahead else sequence.token_ids[at]
            host["positions"][row] = at
            host["token_slots"][row] = sequence.pages[at // page_size] * page_size + at % page_size
            host["sequences"][row] = row
            host["live"][row], host["shadow"][row] = sequence.live, sequence.shadow
            host["boundary"][row] = self._hybrid and (at + 1) % page_size == 0
            self._decode.write_table(row, sequence.pages)
            self._decode.write_draw(row, sequence, unseen=unseen)
        count = len(decode.sequences)
        for name in ("token_ids", "positions", "token_slots", "live", "shadow", "boundary"):
            host[name][count:size] = 0
        host["temperature"][count:size] = 0
        host["sequences"][count:size] = -1
        host["starts"][:size] = host["positions"][:size]
        host["num_rows"][0] = count
        self._decode.send()
        if decode.ahead:
            self._feed(count)
        if size not in self._sized:
            self._sized[size] = self._rows_of_decode(size)
        return self._sized[size]

    def span(self, span: Span, cut: Cut) -> Batches:
        """Batches of every tile, of the chunk and of the span; rows that the cut has more are padding."""
        self._span.wait()
        firsts = self._write_pieces(span)
        self._write_padding(firsts[-1], sum(cut.chunks[0]))
        batches = self._batches(
            cut,
            [
                self._write_launch(launch, span, firsts, whole=whole)
                for launch, whole in self._launches(cut)
            ],
        )
        self._span.send()
        return {**batches}

    def prompt(self, cut: Cut) -> Batches:
        """Where a span of one piece will be, for a graph."""
        return {**self._batches(cut, [range(1)] * len(self._launches(cut)))}

    def moves(self, moves: tuple[tuple[int, ...], ...]) -> Batches:
        """For `park`: no rows, only copies of states."""
        return {SPAN: replace(self._rows_of_decode(0), moves=moves)}

    def _feed(self, count: int) -> None:
        """Token ids of a step ahead, in the same rows; where none could be drawn any other will do."""
        drawn = self._views.tensor(Value("decode.tokens"))[:count]
        with torch.inference_mode():
            self._decode.device["token_ids"][:count].copy_(drawn).clamp_(min=0)

    def _rows_of_decode(self, size: int) -> DeviceRows:
        device = self._decode.device
        return DeviceRows(
            num_rows=device["num_rows"][:1],
            token_ids=device["token_ids"][:size],
            positions=device["positions"][:size],
            token_slots=device["token_slots"][:size],
            sequences=device["sequences"][:size],
            first_rows=device["first_rows"][: size + 1],
            starts=device["starts"][:size],
            pages=device[PAGES][:size],
            live=device["live"][:size],
            shadow=device["shadow"][:size],
            boundary=device["boundary"][:size],
            draws=self._decode.draws(size),
        )

    def _write_pieces(self, span: Span) -> list[int]:
        """Rows and sequences of all pieces; the first row of each, and the end."""
        host, page_size = self._span.host, self._page_size
        firsts = [0]
        for number, piece in enumerate(span.pieces):
            first, end = firsts[-1], firsts[-1] + piece.end - piece.start
            firsts.append(end)
            sequence = piece.sequence
            dropped = sequence.request_id in span.dropped
            here = np.arange(piece.start, piece.end)
            host["token_ids"][first:end] = sequence.token_ids[piece.start : piece.end]
            host["positions"][first:end] = here
            if dropped:  # its rows go to the sentinel page and the padding state
                host["token_slots"][first:end] = 0
                self._span.write_table(number, (0,) * self._span.host[PAGES].shape[1])
            else:
                pages = np.asarray(sequence.pages)[here // page_size]
                host["token_slots"][first:end] = pages * page_size + here % page_size
                self._span.write_table(number, sequence.pages)
            self._write_draw(number, piece)
            host["copies"][number] = (end - 1, number)  # its last row
            starts = piece.first and self._hybrid and not dropped
            host["restores"][number] = restored(piece) if starts else NOTHING
        return firsts

    def _write_padding(self, first: int, end: int) -> None:
        """Rows that a captured prefill has more than the prompt."""
        for name in ("token_ids", "positions", "token_slots"):
            self._span.host[name][first:end] = 0
        for name in ("tile_sequences", "chunk_sequences"):
            self._span.host[name][first:end] = -1

    def _write_draw(self, number: int, piece: Piece) -> None:
        self._span.write_draw(number, piece.sequence)
        if not piece.final:
            self._span.host["temperature"][number] = 0  # nobody looks at its token

    def _launches(self, cut: Cut) -> list[tuple[range, bool]]:
        """Rows of each tile, then those of the chunk, which is the whole."""
        assert len(cut.chunks) == 1, "one chunk has a place for its rows"
        ends = list(accumulate(cut.chunks[0], initial=0))
        return [*((range(*pair), False) for pair in pairwise(ends)), (range(ends[-1]), True)]

    def _write_launch(self, rows: range, span: Span, firsts: Items[int], *, whole: bool) -> range:
        """Sequences of these rows, numbered from the first that has one of them; which pieces they are."""
        host = self._span.host
        at = self._number(rows, whole=whole)
        end = min(rows.stop, firsts[-1])
        pieces = range(bisect_right(firsts, rows.start) - 1, bisect_left(firsts, end))
        name = "chunk_sequences" if whole else "tile_sequences"
        for row, number in enumerate(pieces):
            begin, stop = max(rows.start, firsts[number]), min(end, firsts[number + 1])
            host[name][begin:stop] = row
            start = int(host["positions"][begin])
            boundary = span.pieces[number].boundary if self._hybrid else 0
            inside = start < boundary <= start + stop - begin
            host["first_rows"][at, row] = begin - rows.start
            host["starts"][at, row] = start
            host["boundary"][at, row] = boundary - start if inside else 0
            one = span.pieces[number].sequence
            states = (0, 0) if one.request_id in span.dropped else (one.live, one.shadow)
            host["live"][at, row], host["shadow"][at, row] = states
        host["first_rows"][at, len(pieces)] = end - rows.start
        host["num_rows"][at, 0] = end - rows.start
        return pieces

    def _number(self, rows: range, *, whole: bool) -> int:
        """The chunk's own numbers lie behind those of all possible tiles."""
        return self._span.host["num_rows"].shape[0] - 1 if whole else rows.start // self._tile

    def _batches(self, cut: Cut, pieces: Items[range]) -> dict[Key, DeviceRows]:
        """Where kernels find what was written; `pieces` of each launch."""
        found: dict[Key, DeviceRows] = {}
        for number, ((rows, whole), own) in enumerate(
            zip(self._launches(cut), pieces, strict=True)
        ):
            key: Key = ("tokens", 0) if whole else ("tile", 0, number)
            found[key] = self._rows_of_launch(rows, own, whole=whole)
        count = cut.num_seqs
        copies = self._span.device["copies"][:count]
        found["tokens", 0] = replace(found["tokens", 0], copies=copies)
        restores = self._span.device["restores"][:count]
        found[SPAN] = replace(found["tokens", 0], draws=self._span.draws(count), restores=restores)
        return found

    def _rows_of_launch(self, rows: range, pieces: range, *, whole: bool) -> DeviceRows:
        device, at = self._span.device, self._number(rows, whole=whole)
        own, count = slice(rows.start, rows.stop), len(pieces)
        return DeviceRows(
            num_rows=device["num_rows"][at, :1],
            token_ids=device["token_ids"][own],
            positions=device["positions"][own],
            token_slots=device["token_slots"][own],
            sequences=device["chunk_sequences" if whole else "tile_sequences"][own],
            first_rows=device["first_rows"][at, : count + 1],
            starts=device["starts"][at, :count],
            pages=device[PAGES][pieces.start : pieces.stop],
            live=device["live"][at, :count],
            shadow=device["shadow"][at, :count],
            boundary=device["boundary"][at, :count],
        )
