"""The engine: schedules, runs programs, hands out tokens. Built from a plan alone; knows no process and no text."""

from collections.abc import Callable

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundYield, Value
from firmtoken.runtime.engine.batches import (
    SPAN,
    BatchBuilder,
    Batches,
    Cut,
    cut_rows,
    drawn_tokens,
)
from firmtoken.runtime.engine.limits import limits_of
from firmtoken.runtime.engine.messages import Abort, Add, Done, Log, Stats, Up
from firmtoken.runtime.engine.program import Abandoned, Interpreter
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Span

Emit = Callable[[Up], None]
Poll = Callable[[], None]
Deliver = Callable[[], None]

NO_ROWS = Cut(chunks=(), num_seqs=0)


class Engine:
    """One plan, one interpreter. `emit` gets every message at once; `poll` is called where requests may change.

    `deliver` is called where what was emitted must not wait: before a launch, after first tokens, when a request ends.
    """

    def __init__(
        self,
        plan: Plan,
        interpreter: Interpreter,
        emit: Emit,
        poll: Poll,
        deliver: Deliver = lambda: None,
    ) -> None:
        self.scheduler = Scheduler(limits_of(plan), self._park)
        self.steps = 0
        self._plan = plan
        self._interpreter = interpreter
        self._emit = emit
        self._poll = poll
        self._deliver = deliver
        self._arrivals = 0
        self._units = 0
        self._announced: tuple[int, ...] = ()
        self._batches = BatchBuilder(plan.kv_cache.page_size, hybrid=self.scheduler.limits.hybrid)

    @property
    def idle(self) -> bool:
        """Nothing to do until a message comes."""
        return self.scheduler.idle

    def handle(self, message: Add | Abort) -> None:
        """A request comes or goes."""
        if isinstance(message, Abort):
            self.scheduler.abort(message.request_id)
        else:
            self.scheduler.add(Sequence.of(message, self._arrivals))
            self._arrivals += 1
        self._flush()

    def abort_all(self) -> None:
        """Every request ends."""
        self.scheduler.abort_all()
        self._flush()

    def step(self) -> None:
        """Schedule, run, take over what was drawn, say so."""
        work = self.scheduler.schedule()
        self._flush()
        if isinstance(work, Span):
            self._run_span(work)
        elif work is not None:
            self._run_decode(work)
        self._batches.forget({member.request_id for member in self.scheduler.running})
        self._flush()
        if not isinstance(work, Decode):
            self._deliver()

    def stats(self) -> Stats:
        """Counters so far."""
        scheduler, holdings = self.scheduler, self.scheduler.holdings
        counters = self._interpreter.counters
        return Stats(
            running=len(holdings.members),
            waiting=len(scheduler.waiting),
            pages_free=holdings.pages.num_free,
            pages_cached=holdings.cache.evictable,
            pages_total=holdings.pages.num_usable,
            state_slots_free=holdings.states.num_free,
            snapshot_slots_free=holdings.snapshots.num_free,
            steps=self.steps,
            prompt_tokens=scheduler.prompt_tokens,
            cached_tokens=scheduler.cached_tokens,
            output_tokens=scheduler.output_tokens,
            preemptions=scheduler.preemptions,
            expert_hits=counters.expert_hits,
            expert_misses=counters.link_bytes["decode"] // self._plan.experts.slot_bytes,
            link_bytes=dict(counters.link_bytes),
        )

    def _run_span(self, span: Span) -> None:
        schedule = self._plan.schedule
        cut = cut_rows(
            span.num_tokens,
            len(span.pieces),
            chunk=schedule.moe_chunk,
            tile=schedule.mixer_tile,
        )
        self._announce_span(span)
        batches = self._batches.span(span, cut)
        dropped = 0

        def at_yield(_: BoundYield) -> None:
            nonlocal dropped
            self._poll()
            if len(span.dropped) > dropped:
                dropped = len(span.dropped)
                if not span.kept:
                    raise Abandoned
                batches.update(self._batches.span(span, cut))
            self._decode_between()

        self._interpreter.run(span.program, cut, batches, at_yield)
        self.steps += 1
        # An abandoned run drew nothing, and nobody of it is kept.
        tokens = self._drawn(span.program, len(span.pieces))
        self.scheduler.complete_span(span, drawn_tokens(span, tokens))

    def _decode_between(self) -> None:
        """Running streams go on inside an open span, at every n-th unit."""
        self._units += 1
        if self._units < self.scheduler.limits.decode_every_units:
            return
        decode = self.scheduler.decode_at_yield()
        if decode is not None:
            self._run_decode(decode)
            self._flush()
            self._deliver()  # the span goes on: the next announcement may be far

    def _run_decode(self, decode: Decode) -> None:
        self._units = 0
        self._announce_decode(decode)
        batch = self._batches.decode(decode)
        batches: Batches = {SPAN: batch, ("tokens", 0): batch}
        cut = Cut(chunks=((decode.size,),), num_seqs=decode.size)
        self._interpreter.run("decode", cut, batches)
        self.steps += 1
        tokens = self._drawn("decode", len(decode.sequences))
        self.scheduler.complete_decode(
            decode,
            {
                sequence.request_id: token
                for sequence, token in zip(decode.sequences, tokens, strict=True)
            },
        )

    def _park(self, moves: tuple[tuple[int, int], ...]) -> None:
        self._interpreter.run("park", NO_ROWS, self._batches.moves(moves))

    def _drawn(self, program: str, count: int) -> list[int]:
        tokens: list[int] = self._interpreter.views.tensor(Value(f"{program}.tokens"))[
            :count
        ].tolist()
        return tokens

    def _announce_span(self, span: Span) -> None:
        pieces = ", ".join(
            f"{piece.sequence.request_id}[{piece.start}:{piece.end}]" for piece in span.pieces
        )
        self._emit(
            Log(line=f"step {self.steps}: {span.program} {span.num_tokens} tokens: {pieces}")
        )
        self._deliver()

    def _announce_decode(self, decode: Decode) -> None:
        # A line for each batch, not for each token of it: the same sequences again are the same batch.
        ids = tuple(sequence.request_id for sequence in decode.sequences)
        if ids != self._announced:
            self._announced = ids
            shown = ", ".join(map(str, ids))
            self._emit(Log(line=f"step {self.steps}: decode {len(ids)} of {decode.size}: {shown}"))
        self._deliver()

    def _flush(self) -> None:
        messages = self.scheduler.collect()
        for message in messages:
            self._emit(message)
        if any(isinstance(message, Done) for message in messages):
            self._deliver()
