"""Rows for the self-check: the same decode steps and prompts for a GPU's kernels and for their references.

References get pages and state slots numbered from 0; those of the device lie apart and up to the last one: what a
kernel reads is brought over without the rest of a pool, and an address beyond 32 bits is met.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

import torch

from firmtoken.compiler.admission import need
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.batches import SPAN, BatchBuilder, Batches, Cut, Key, cut_rows
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.messages import Sampling
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Piece, PrefillProgram, Span
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.sample.philox import uniform

Builder = BatchBuilder | DeviceBatches
Moves = tuple[tuple[int, int], ...]
"""State slot and snapshot."""

DEPTH = 1000
"""Tokens before a deep row: of several parts where a kernel splits a sequence."""
SAMPLINGS = ((0.0, 1.0, 0), (1.0, 0.95, 0), (0.7, 1.0, 2), (1.0, 0.9, 20))
"""Temperature, top-p and top-k of one row after another."""
ODD, PAGES, MANY = 37, 197, 768
"""Rows of a prompt in one page, in several, and enough for the largest tiles of every kernel (`tile_shapes.py`): more
would be more of the same, and take references seconds."""
PADDING = 13
"""Rows that a padded prompt lacks."""
CONTINUED = (0, 1, 5)
"""Pages before each of three prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Of pages, state slots and snapshots: what each is on the device, by the number that a reference knows it by.

    Number 0 is padding's. The last is nobody's, where there is one to spare: it must stay as it is.
    """

    pages: tuple[int, ...]
    states: tuple[int, ...]
    snapshots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A decode step or a span that is launched."""

    program: str
    cut: Cut
    numbers: Numbers
    plain: Decode | Span | Moves
    """As references know it."""
    real: int
    """Rows that are no padding."""

    @property
    def rows(self) -> int:
        """Padding included."""
        return sum(map(sum, self.cut.chunks))


def spread(used: int, total: int) -> tuple[int, ...]:
    """Of `used` things beside the first of `total`: far apart, the highest among them; then one more, if there is."""
    assert used < total, f"{used} of {total - 1}"
    step = max(1, (total - 1) // used) if used else 1
    found = [total - 1 - number * step for number in range(used)]
    spare = [number for number in range(1, total) if number not in found][:1]
    return (0, *found, *spare)


class Texts:
    """Sequences of random tokens that hold pages, states and, where they go on from a hit, a snapshot."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._hybrid = "linear" in plan.model.layer_kinds
        self._random = random.Random(0)
        self._pages = self._states = self._snapshots = 0

    def sequence(self, number: int, tokens: int, computed: int, *, hit: bool) -> Sequence:
        """The next one; `number` is its row or its place in the span."""
        num_pages = need(tokens, 0, self._plan.kv_cache.page_size)
        first, self._pages = self._pages + 1, self._pages + num_pages
        live = 0
        if self._hybrid:
            live, self._states = self._states + 1, self._states + 2
        snapshot = None
        if hit and self._hybrid and self._snapshots + 1 < self._plan.kv_cache.snapshot_slots:
            self._snapshots += 1
            snapshot = self._snapshots
        temperature, top_p, top_k = SAMPLINGS[number % len(SAMPLINGS)]
        # A draw between two equals is the same in any precision.
        clear = next(seed for seed in count(number) if abs(uniform(seed, tokens) - 0.5) > 0.1)
        vocabulary = self._plan.model.geometry["vocab_size"]
        return Sequence(
            request_id=number,
            arrival=number,
            prompt_tokens=tokens,
            token_ids=[self._random.randrange(int(vocabulary)) for _ in range(tokens)],
            max_output=1,
            sampling=Sampling(
                temperature=temperature, top_p=top_p, top_k=top_k, min_p=0.0, seed=clear
            ),
            stop_token_ids=frozenset(),
            computed=computed,
            target=tokens,
            pages=tuple(range(self._pages, first - 1, -1)),
            live=live,
            shadow=live + 1 if live else 0,
            hit_tokens=computed,
            hit_snapshot=snapshot,
        )

    def numbers(self) -> Numbers:
        """Of all sequences so far."""
        cache = self._plan.kv_cache
        return Numbers(
            pages=spread(self._pages, cache.pages),
            states=spread(self._states, max(1, cache.state_slots)),
            snapshots=spread(self._snapshots, max(1, cache.snapshot_slots)),
        )


def cases(plan: Plan) -> Iterator[Case]:
    """Every planned decode step; prompts of one row, a few, several pages and many rows; parked states."""
    for size in plan.schedule.graph_batch_sizes:
        yield decode_case(plan, size)
    most = min(plan.schedule.mixer_tile, plan.context.effective - 1, MANY)
    for rows, pieces in ((1, 1), (ODD, 2), (PAGES, 3)):
        if rows < most:
            yield span_case(plan, rows, min(pieces, plan.schedule.max_num_seqs))
    captured = [rows for rows in plan.schedule.prefill_graph_rows if PADDING < rows <= most]
    if captured:
        yield span_case(plan, captured[-1], 1, padding=PADDING)
    else:
        yield span_case(plan, most, 1)
    on_demand = min(plan.schedule.on_demand_below.cold - 1, ODD)
    if on_demand > 0:
        yield span_case(plan, on_demand, 1, program="extend")
    if plan.programs.park is not None:
        yield park_case(plan)


def decode_case(plan: Plan, size: int) -> Case:
    """As few sequences as this size is for: first token, last of a page, within a page, and deep."""
    page = plan.kv_cache.page_size
    number = min(size // 2 + 1, plan.schedule.max_num_seqs)
    most = min(plan.context.effective, (plan.kv_cache.pages - 1) // number * page) - 1
    texts = Texts(plan)
    depths = [min(depth, most) for depth in (page - 1, DEPTH, 0, 3 * page + 5)]
    sequences = tuple(
        texts.sequence(row, depths[row % 4] + 1, depths[row % 4], hit=False)
        for row in range(number)
    )
    return Case(
        program="decode",
        cut=Cut(chunks=((size,),), num_seqs=size),
        numbers=texts.numbers(),
        plain=Decode(sequences=sequences, size=size),
        real=number,
    )


def span_case(
    plan: Plan, rows: int, pieces: int, padding: int = 0, program: PrefillProgram = "prefill"
) -> Case:
    """A span of whole texts, of which the later ones go on from a hit."""
    schedule, page = plan.schedule, plan.kv_cache.page_size
    real = rows - padding
    if real + pieces * page > (plan.kv_cache.pages - 1) * page:
        pieces = 1  # a small pool has no room for what several leave empty in their last pages
    share = real // pieces
    texts = Texts(plan)
    found = []
    for number in range(pieces):
        own = share if number else real - share * (pieces - 1)
        most = min(plan.context.effective - 1, plan.kv_cache.pages // pieces * page) - own
        start = min(CONTINUED[number], max(0, most) // page) * page
        sequence = texts.sequence(number, start + own, start, hit=start > 0)
        boundary = (start + own - 1) // page * page
        found.append(
            Piece(
                sequence=sequence,
                start=start,
                end=start + own,
                final=True,
                boundary=boundary if boundary > start else 0,
            )
        )
    return Case(
        program=program,
        cut=cut_rows(rows, pieces, chunk=schedule.moe_chunk, tile=schedule.mixer_tile),
        numbers=texts.numbers(),
        plain=Span(program=program, pieces=tuple(found)),
        real=real,
    )


def park_case(plan: Plan) -> Case:
    """States of two slots, or the only one."""
    number = min(2, plan.kv_cache.state_slots - 1, plan.kv_cache.snapshot_slots - 1)
    return Case(
        program="park",
        cut=Cut(chunks=(), num_seqs=0),
        numbers=Numbers(
            pages=(0,),
            states=spread(number, plan.kv_cache.state_slots),
            snapshots=spread(number, plan.kv_cache.snapshot_slots),
        ),
        plain=tuple((slot, number + 1 - slot) for slot in range(1, number + 1)),
        real=0,
    )


def device_batches(case: Case, builder: Builder) -> Batches:
    """What the device's kernels read, sent."""
    numbers = case.numbers

    def renumbered(sequence: Sequence) -> Sequence:
        hit = sequence.hit_snapshot
        return replace(
            sequence,
            pages=tuple(numbers.pages[page] for page in sequence.pages),
            live=numbers.states[sequence.live],
            shadow=numbers.states[sequence.shadow],
            hit_snapshot=None if hit is None else numbers.snapshots[hit],
        )

    if isinstance(case.plain, Decode):
        batch = builder.decode(
            replace(case.plain, sequences=tuple(map(renumbered, case.plain.sequences)))
        )
        return {SPAN: batch, ("tokens", 0): batch}
    if isinstance(case.plain, tuple):
        return builder.moves(
            tuple((numbers.states[state], numbers.snapshots[to]) for state, to in case.plain)
        )
    pieces = tuple(
        replace(piece, sequence=renumbered(piece.sequence)) for piece in case.plain.pieces
    )
    return builder.span(replace(case.plain, pieces=pieces), case.cut)


def reference_batches(plan: Plan, case: Case) -> dict[Key, Batch]:
    """The same for references."""
    schedule = plan.schedule
    builder = BatchBuilder(plan.kv_cache.page_size, hybrid="linear" in plan.model.layer_kinds)
    if isinstance(case.plain, Decode):
        step = builder.decode(case.plain)
        return {SPAN: step, ("tokens", 0): step}
    if isinstance(case.plain, tuple):
        return _of_references(builder.moves(case.plain))
    cut = cut_rows(
        case.real, len(case.plain.pieces), chunk=schedule.moe_chunk, tile=schedule.mixer_tile
    )
    batches = _of_references(builder.span(case.plain, cut))
    return {key: _padded(batch, case.rows - case.real) for key, batch in batches.items()}


def _of_references(batches: Batches) -> dict[Key, Batch]:
    return {key: batch for key, batch in batches.items() if isinstance(batch, Batch)}


def _padded(batch: Batch, padding: int) -> Batch:
    """Only a span of one tile is padded, so every launch of it is."""
    nothing = torch.zeros(padding, dtype=torch.int64)
    return replace(
        batch,
        rows=batch.rows + padding,
        token_ids=torch.cat((batch.token_ids, nothing)),
        positions=torch.cat((batch.positions, nothing)),
        token_slots=torch.cat((batch.token_slots, nothing)),
    )
