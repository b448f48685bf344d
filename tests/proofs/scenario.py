"""A short life of three sequences as one list of launches: every program after every other, as `session` composes them.

    D D park P(D, park D) park D park E E D        one runs, one is prefilled from a snapshot, two are extended
    D a(park) E D          a step is launched ahead of the tokens of the one before; with those somebody ends meanwhile,
                           and another gets its pages and states

Each launch is the interpreter's own: the plan's kernel, operands and batch. The host is a stream of its own, as in
`compiler/sessions.py`: it takes what a run drew, and feeds the batch of a run before its first launch on `main`.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundYield, Value
from firmtoken.compiler.sessions import DRAWN, ENQUEUED, HOST, Cards, cards_of, launch_of
from firmtoken.compiler.steps_ahead import UNDER_WAY
from firmtoken.runtime.engine.batches import SPAN, BatchBuilder, Batches, Cut, cut_rows
from firmtoken.runtime.engine.launches import Launch
from firmtoken.runtime.engine.messages import Sampling
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Piece, Span
from firmtoken.runtime.kernels.batch import Batch

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
UNKNOWN = 0
"""A token that will be drawn."""
NO_SUCH_TOKEN = 2**40
Place = tuple[int, int]
"""Layer and chunk."""
GRAPH = "graph"
"""Decode's side stream: a captured graph's streams are its own, which allows more orders than a shared one."""
RESTORED = 64
"""Tokens of a sequence that its snapshot covers: a page boundary of hybrid models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One launch, ready to run once what it waits for has run."""

    label: str
    program: str
    stream: str
    waits: tuple[Value, ...]
    records: tuple[Value, ...]
    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    continues: bool
    batch: Batch | None
    run: Callable[[], object]
    launch: Launch | None = None
    """None for the host's, and for copies of tokens."""


@dataclass(slots=True)
class Results:
    """What came out."""

    logits: list[tuple[str, torch.Tensor]]
    """Of each run, as `sample` found them."""
    hidden: list[torch.Tensor]
    """Of each chunk behind its last layer: any row may be the last of somebody's prompt."""
    tokens: dict[int, int]
    """Request id -> its last token."""


class Scenario:
    """Issues runs; `tasks` are all launches in issue order."""

    def __init__(self, plan: Plan, interpreter: Interpreter, *, ignore_holds: bool = False) -> None:
        self.tasks: list[Task] = []
        self.results = Results([], [], {})
        self.hybrid = "linear" in plan.model.layer_kinds
        self._plan = plan
        self._interpreter = interpreter
        self._cards: Cards = cards_of(plan.kernels)
        self._builder = BatchBuilder(plan.kv_cache.page_size, hybrid=self.hybrid)
        self._ignore_holds = ignore_holds
        self._held: set[Value] = set()
        self._next_page = 1
        self._fed: list[tuple[Batch, Mapping[int, int]]] = []
        self._brought: dict[int, list[int]] = {}
        self._num_brought = 0
        self._first: dict[int, int] = {}

    def begin(self, sequence: Sequence, token: int) -> None:
        """What was drawn for it before the scenario begins."""
        self._first[sequence.request_id] = token
        sequence.token_ids.append(UNKNOWN)

    def restart(self) -> None:
        """Nothing has been drawn yet, and no batch been fed."""
        self.results = Results([], [], dict(self._first))
        self._brought.clear()
        for batch, rows in self._fed:
            for row in rows:
                batch.token_ids[row] = NO_SUCH_TOKEN

    def heir(self, sequence: Sequence, number: int, num_tokens: int, computed: int) -> Sequence:
        """Another, which gets the pages and state slots of one that has ended."""
        size = self._plan.kv_cache.page_size
        other = self.sequence(number, num_tokens, computed, 0)
        other.max_output = len(sequence.pages) * size - num_tokens
        other.pages, other.live, other.shadow = sequence.pages, sequence.live, sequence.shadow
        return other

    def sequence(self, number: int, num_tokens: int, computed: int, room: int) -> Sequence:
        """A sequence with pages for `room` tokens and state slots of its own."""
        size = self._plan.kv_cache.page_size
        count = -(-room // size)
        pages = tuple(range(self._next_page, self._next_page + count))
        self._next_page += count
        assert self._next_page <= self._plan.kv_cache.pages
        generator = torch.Generator().manual_seed(number)
        vocab = int(self._plan.model.geometry["vocab_size"])
        return Sequence(
            request_id=number,
            arrival=number,
            prompt_tokens=num_tokens,
            token_ids=torch.randint(0, vocab, (num_tokens,), generator=generator).tolist(),
            max_output=room - num_tokens,
            sampling=GREEDY,
            stop_token_ids=frozenset(),
            computed=computed,
            hit_tokens=computed,
            pages=pages,
            live=2 * number + 1,
            shadow=2 * number + 2,
        )

    def decode(self, *sequences: Sequence) -> None:
        """One step; each sequence's input is what was drawn for it last."""
        batch = self._decode_batch(sequences)
        rows = {row: sequence.request_id for row, sequence in enumerate(sequences)}
        self._feed("decode", batch, rows)
        self._run_decode(batch)
        self._take("decode", sequences)
        for sequence in sequences:
            sequence.computed += 1

    def decode_ahead(self, *sequences: Sequence, meanwhile: Callable[[], None]) -> None:
        """Two steps, the second launched before the host takes what the first drew; then `meanwhile`."""
        rows = {row: sequence.request_id for row, sequence in enumerate(sequences)}
        takes = []
        for is_ahead in (False, True):
            batch = self._decode_batch(sequences)
            if is_ahead:
                self._feed_on_main(batch, rows)
            else:
                self._feed("decode", batch, rows)
            self._run_decode(batch)
            takes.append(self._bring(sequences))
            for sequence in sequences:
                sequence.token_ids.append(UNKNOWN)
                sequence.computed += 1
        first, second = takes
        first()
        meanwhile()
        second()

    def span(
        self,
        program: str,
        sequence: Sequence,
        at_yield: Many[tuple[Place, Callable[[], None]]] = (),
    ) -> None:
        """Everything of a sequence that is not computed yet; `at_yield`: what runs behind which unit."""
        end = len(sequence.token_ids)
        size = self._plan.kv_cache.page_size
        boundary = (end - 1) // size * size
        piece = Piece(
            sequence=sequence, start=sequence.computed, end=end, final=True, boundary=boundary
        )
        span = Span(program="extend" if program == "extend" else "prefill", pieces=(piece,))
        schedule = self._plan.schedule
        cut = cut_rows(span.num_tokens, 1, chunk=schedule.moe_chunk, tile=schedule.mixer_tile)
        batches = self._builder.span(span, cut)
        self._feed(program, batches[SPAN], {})
        self._run(program, cut, batches, at_yield)
        self._take(program, (sequence,))
        sequence.computed = end

    def park(self, sequence: Sequence, snapshot: int) -> None:
        """Copies the shadow states of a sequence; nothing where there are no states."""
        if self._plan.programs.park is not None:
            moves = self._builder.moves(((sequence.shadow, snapshot),))
            self._run("park", Cut(chunks=(), num_seqs=0), moves)

    def _decode_batch(self, sequences: tuple[Sequence, ...]) -> Batch:
        sizes = self._plan.programs.decode.sizes
        size = next(size for size in sizes if size >= len(sequences))
        return self._builder.decode(Decode(sequences=sequences, size=size))

    def _run_decode(self, batch: Batch) -> None:
        cut = Cut(chunks=((batch.rows,),), num_seqs=batch.rows)
        self._run("decode", cut, {SPAN: batch, ("tokens", 0): batch})

    def _run(
        self,
        name: str,
        cut: Cut,
        batches: Batches,
        at_yield: Many[tuple[Place, Callable[[], None]]] = (),
    ) -> None:
        entered = name == "park"
        for item in self._interpreter.bind(name, cut):
            if isinstance(item, BoundYield):
                for place, act in at_yield:
                    if place == (item.at["l"], item.at["c"]):
                        act()
                continue
            waits = item.waits
            if not entered and item.on_main:
                waits, entered = (*waits, ENQUEUED), True
            self.tasks.append(self._task(name, item, waits, batches[item.key]))

    def _task(self, name: str, item: Launch, waits: tuple[Value, ...], batch: Batch) -> Task:
        seen = launch_of(item.step, name, self._cards)
        if not self._held.isdisjoint(item.step.writes) and not self._ignore_holds:
            batch = replace(batch, held=True)
        self._held |= set(item.step.holds)
        self._held -= set(item.step.drops)
        return Task(
            label=seen.label,
            program=name,
            stream=GRAPH if name == "decode" and not item.on_main else seen.stream,
            waits=waits,
            records=seen.records,
            reads=item.step.reads,
            writes=item.step.writes,
            continues=seen.continues,
            batch=batch,
            run=partial(self._call, name, item, batch),
            launch=item,
        )

    def _call(self, name: str, item: Launch, batch: Batch) -> None:
        if item.step.step.op == "copy":
            self.results.hidden.append(operands(item)["source"].clone())
        if item.step.step.op == "sample":
            logits = self._interpreter.views.tensor(Value(f"{name}.logits"))
            self.results.logits.append((name, logits[: len(batch.draws)].clone()))
        item.call(batch)

    def _feed(self, name: str, batch: Batch, rows: Mapping[int, int]) -> None:
        """The host writes the token of each of these rows."""

        def feed() -> None:
            for row, request_id in rows.items():
                batch.token_ids[row] = self.results.tokens[request_id]

        self._fed.append((batch, rows))
        self._host(f"feed {name}", feed, records=(ENQUEUED,))

    def _take(self, name: str, sequences: tuple[Sequence, ...]) -> None:
        """The host reads what was drawn."""
        tokens = self._tokens(name)

        def take() -> None:
            drawn = tokens[: len(sequences)].tolist()
            for sequence, token in zip(sequences, drawn, strict=True):
                self.results.tokens[sequence.request_id] = token

        self._host(f"take {name}", take, waits=(DRAWN,), reads=(Value(f"{name}.tokens"),))
        for sequence in sequences:
            sequence.token_ids.append(UNKNOWN)

    def _feed_on_main(self, batch: Batch, rows: Mapping[int, int]) -> None:
        """Tokens go from where the step before draws them to the batch of this one."""
        tokens = self._tokens("decode")
        self._fed.append((batch, rows))
        self._beside_programs(
            "feed ahead",
            lambda: batch.token_ids[: len(rows)].copy_(tokens[: len(rows)]),
            stream="main",
            reads=(Value("decode.tokens"),),
        )

    def _bring(self, sequences: tuple[Sequence, ...]) -> Callable[[], None]:
        """A copy on `main` takes what was drawn to one of the host's places; what is given takes it from there."""
        at, tokens = self._num_brought % UNDER_WAY, self._tokens("decode")
        self._num_brought += 1
        there = Value(DRAWN.name, (at,))

        def bring() -> None:
            self._brought[at] = tokens[: len(sequences)].tolist()

        def take() -> None:
            for sequence, token in zip(sequences, self._brought[at], strict=True):
                self.results.tokens[sequence.request_id] = token

        self._beside_programs(
            "bring decode", bring, stream="main", records=(there,), reads=(Value("decode.tokens"),)
        )
        return lambda: self._host("take ahead", take, waits=(there,))

    def _tokens(self, name: str) -> torch.Tensor:
        return self._interpreter.views.tensor(Value(f"{name}.tokens"))

    def _host(
        self,
        label: str,
        run: Callable[[], object],
        *,
        waits: tuple[Value, ...] = (),
        records: tuple[Value, ...] = (),
        reads: tuple[Value, ...] = (),
    ) -> None:
        self._beside_programs(label, run, stream=HOST, waits=waits, records=records, reads=reads)

    def _beside_programs(
        self,
        label: str,
        run: Callable[[], object],
        *,
        stream: str,
        waits: tuple[Value, ...] = (),
        records: tuple[Value, ...] = (),
        reads: tuple[Value, ...] = (),
    ) -> None:
        self.tasks.append(
            Task(
                label=label,
                program=HOST,
                stream=stream,
                waits=waits,
                records=records,
                reads=reads,
                writes=(),
                continues=False,
                batch=None,
                run=run,
            )
        )


def operands(launch: Launch) -> dict[str, Any]:  # operands differ by op
    """Operand name -> what the kernel is called with."""
    assert isinstance(launch.call, partial)
    return {name: launch.call.keywords[name] for name in launch.step.operands}


def short_life(plan: Plan, interpreter: Interpreter, *, ignore_holds: bool = False) -> Scenario:
    """The scenario of this file.

    Shadow states change right before a snapshot of them and right after, and every snapshot is restored from: a copy
    that is made too early or too late shows.
    """
    life = Scenario(plan, interpreter, ignore_holds=ignore_holds)
    layers, chunk, page = len(plan.model.layer_kinds), plan.schedule.moe_chunk, RESTORED
    chunks = plan.schedule.prefill_span // chunk
    whole = page + chunk * chunks - (page if chunks > 1 else 0)
    running = life.sequence(0, page - 2, page - 2, 2 * page)
    entering = life.sequence(1, whole - 1, page, whole + 1)
    extending = [life.sequence(number, page + 40, page, page + 48) for number in (2, 3)]
    beside = life.sequence(4, 5, 5, page)
    life.begin(running, 1)
    life.begin(beside, 2)

    life.decode(running)
    life.decode(running)  # its 64th token
    life.park(running, 0)
    entering.hit_snapshot = 0
    # Behind the first chunk of layer 1: what it and layer 2 count on may not be evicted.
    # In the last layer, and the step behind all chunks: with it `main` waits for the side stream and all its copies.
    at_yield: tuple[tuple[Place, Callable[[], None]], ...] = (
        ((1, 0), lambda: life.decode(beside)),
        ((layers - 1, 0), lambda: life.park(running, 3)),
        ((layers - 1, chunks - 1), lambda: life.decode(running)),
    )
    life.span("prefill", entering, at_yield)
    life.park(entering, 1)
    life.decode(running, entering)  # the last token of a page of `entering`
    life.park(entering, 2)
    for sequence, snapshot in zip(extending, (2, 1), strict=True):
        sequence.hit_snapshot = snapshot
        life.span("extend", sequence)
    life.decode(running, entering, extending[0])
    life.decode_ahead(running, extending[0], meanwhile=lambda: life.park(running, 0))
    heir = life.heir(running, 5, page + 20, page)
    heir.hit_snapshot = 0
    life.span("extend", heir)
    life.decode(heir, extending[0])
    return life
