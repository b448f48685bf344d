"""The engine: schedules, runs programs, hands out tokens. Built from a plan alone; knows no process and no text."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundYield
from firmtoken.runtime.engine.batches import (
    SPAN,
    Batches,
    Cut,
    cut_rows,
    drawn_tokens,
)
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.drawn import Read
from firmtoken.runtime.engine.failures import EngineBroken, sentence, why_broken
from firmtoken.runtime.engine.holdings import NotParked
from firmtoken.runtime.engine.invariants import check_invariants
from firmtoken.runtime.engine.limits import limits_of
from firmtoken.runtime.engine.loading import fill_slots
from firmtoken.runtime.engine.messages import Abort, Add, Done, Log, Stats, Up
from firmtoken.runtime.engine.program import Abandoned, FailedBefore, Interpreter, LaunchFailed
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.engine.waits import Waits
from firmtoken.runtime.engine.work import Decode, Span
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN

Emit = Callable[[Up], None]
Poll = Callable[[], None]
Deliver = Callable[[], None]
Clock = Callable[[], float]

NO_ROWS = Cut(chunks=(), num_seqs=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedStep:
    """A decode step that is under way."""

    decode: Decode
    tokens: Read


class Engine:
    """One plan, one interpreter. `emit` gets every message at once; `poll` is called where requests may change.

    `deliver` is called where what was emitted must not wait: before a launch, after first tokens, when a request ends.
    A step that fails ends the requests it worked on, each with one sentence, and nobody else's. `checked` is for
    debugging: every invariant is recomputed after every step. `ahead`: where the next step can only be the same decode
    step once more, it is launched before the tokens of this one are read, so that the device never waits for the host;
    it takes a device that runs launches in their order, and decode steps that are replayed. Who ends with a token that
    was not seen yet has a row in one step more, of which nothing is kept.
    """

    def __init__(
        self,
        plan: Plan,
        interpreter: Interpreter,
        emit: Emit,
        poll: Poll,
        deliver: Deliver = lambda: None,
        *,
        clock: Clock = time.monotonic,
        checked: bool = False,
        ahead: bool = False,
    ) -> None:
        self.scheduler = Scheduler(limits_of(plan), self._park)
        self.steps = 0
        self.ahead = ahead
        self._plan = plan
        self._interpreter = interpreter
        self._emit = emit
        self._poll = poll
        self._deliver = deliver
        self._checked = checked
        self._waits = Waits(clock)
        self._decoding: tuple[Sequence, ...] = ()
        """Whose decode step has not gone through yet."""
        self._launched: LaunchedStep | None = None
        """The next step, if it is under way already."""
        self._not_parked: LaunchFailed | None = None
        self._num_failed = 0
        """Steps that failed since the last good one."""
        self._experts_doubted = False
        self._arrivals = 0
        self._units = 0
        self._announced: tuple[int, ...] = ()
        self._batches = interpreter.batch_builder()

    @property
    def idle(self) -> bool:
        """Nothing to do until a message comes."""
        return self.scheduler.idle and self._launched is None

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
        work = self._schedule() if self._launched is None else self._launched.decode
        self._explain_waits()
        self._flush()
        try:
            self._run(work)
        except LaunchFailed as failed:
            self._fail(failed)
        self._batches.forget({member.request_id for member in self.scheduler.running})
        self._flush()
        if not isinstance(work, Decode) or self._launched is not None:
            self._deliver()
        if self._checked:
            check_invariants(self.scheduler)

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
            timed_steps=counters.timed_steps,
            timed_s=counters.timed_s,
        )

    def _schedule(self) -> Span | Decode | None:
        work = self.scheduler.schedule()
        if self._not_parked is None:
            return work
        # Of those that gave way. Nothing of the work has begun: it is scheduled again.
        self.scheduler.abandon_span()
        self._recover(self._not_parked, ())
        return None

    def _run(self, work: Span | Decode | None) -> None:
        if isinstance(work, Span):
            self._run_span(work)
        elif work is not None:
            self._run_decode(work)
        if self._not_parked is not None:
            raise self._not_parked
        if self._experts_doubted:
            self._interpreter.drain()
            self._refill_experts()

    def _run_span(self, span: Span) -> None:
        schedule = self._plan.schedule
        cut = cut_rows(
            self.scheduler.limits.prompt_rows(span.num_tokens, len(span.pieces)),
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
            if self._explain_waits():
                self._deliver()
            if len(span.dropped) > dropped:
                dropped = len(span.dropped)
                if not span.kept:
                    raise Abandoned
                batches.update(self._batches.span(span, cut))
            self._decode_between()

        self._interpreter.run(span.program, cut, batches, at_yield)
        self._count_step()
        # An abandoned run drew nothing, and nobody of it is kept.
        tokens = self._drawn(span.program, self._interpreter.bring(span.program, len(span.pieces)))
        pairs = zip(span.pieces, tokens, strict=True)
        self._end_those_without_a_token(
            (piece.sequence, piece.end)
            for piece, token in pairs
            if token == NO_TOKEN and piece.sequence.request_id not in span.dropped
        )
        self.scheduler.complete_span(span, drawn_tokens(span, tokens))

    def _decode_between(self) -> None:
        """Running streams go on inside an open span, at every n-th unit."""
        self._units += 1
        if self._units < self.scheduler.limits.decode_every_units:
            return
        decode = self.scheduler.decode_at_yield()
        if decode is not None:
            try:
                self._run_decode(decode)
            except FailedBefore as failed:  # not of this batch; but the span around it is lost
                self._decoding = ()
                raise LaunchFailed(str(failed)) from failed.__cause__
            self._flush()
            self._deliver()  # the span goes on: the next announcement may be far
            if self._not_parked is not None:
                raise self._not_parked  # what the span holds is lost with the rest in flight

    def _run_decode(self, decode: Decode) -> None:
        self._units = 0
        launched, self._launched = self._launched or self._launch(decode), None
        self._launched = self._launch_next(decode)
        tokens = self._drawn("decode", launched.tokens)
        self._decoding = ()
        self._count_step()
        # A step that ran ahead may have rows of some that have ended.
        here = [
            (sequence, token)
            for sequence, token in zip(decode.sequences, tokens, strict=True)
            if sequence.phase is Phase.DECODE
        ]
        drawn = {sequence.request_id: token for sequence, token in here}
        decode = replace(decode, sequences=tuple(sequence for sequence, _ in here))
        if NO_TOKEN in drawn.values():
            decode = self._without_strange(decode, drawn)
        self.scheduler.complete_decode(decode, drawn)

    def _launch(self, decode: Decode) -> LaunchedStep:
        self._announce_decode(decode)
        batches, cut = self._decode_batches(decode)
        self._decoding = decode.sequences
        self._interpreter.run("decode", cut, batches)
        return LaunchedStep(
            decode=decode, tokens=self._interpreter.bring("decode", len(decode.sequences))
        )

    def _launch_next(self, decode: Decode) -> LaunchedStep | None:
        """The step after this one, whose tokens are not read yet; inside a span the next work is the span's."""
        if not self.ahead or self.scheduler.open_span is not None:
            return None
        following = self.scheduler.following(decode)
        if following is None:
            return None
        try:
            return self._launch(following)
        except FailedBefore as failed:  # maybe of the step before, which is read no more
            raise LaunchFailed(str(failed)) from failed.__cause__

    def _without_strange(self, decode: Decode, drawn: Mapping[int, int]) -> Decode:
        strange = [one for one in decode.sequences if drawn[one.request_id] == NO_TOKEN]
        self._end_those_without_a_token((one, len(one.token_ids)) for one in strange)
        kept = tuple(one for one in decode.sequences if one not in strange)
        return replace(decode, sequences=kept)

    def capture_decode(self, size: int) -> None:
        """From now on decode steps of this size replay a graph; they have run before."""
        batches, cut = self._decode_batches(Decode(sequences=(), size=size))
        self._interpreter.capture("decode", cut, batches)

    def capture_prompt(self, rows: int) -> None:
        """From now on prompts of one request that are padded to so many rows replay a graph."""
        schedule = self._plan.schedule
        cut = cut_rows(rows, 1, chunk=schedule.moe_chunk, tile=schedule.mixer_tile)
        assert isinstance(self._batches, DeviceBatches), "only a GPU captures"
        self._interpreter.capture("prefill", cut, self._batches.prompt(cut))

    def _decode_batches(self, decode: Decode) -> tuple[Batches, Cut]:
        batch = self._batches.decode(decode)
        cut = Cut(chunks=((decode.size,),), num_seqs=decode.size)
        return {SPAN: batch, ("tokens", 0): batch}, cut

    def _count_step(self) -> None:
        self.steps += 1
        self._num_failed = 0

    def _end_those_without_a_token(self, ends: Iterable[tuple[Sequence, int]]) -> None:
        """Ends requests whose logits are no numbers; what they may have left anywhere is not used again."""
        for sequence, position in ends:
            message = f"the logits of token {position} are not finite"
            self._emit(Log(line=f"request {sequence.request_id} ends: {message}"))
            self.scheduler.fail(sequence, message)
            self.scheduler.distrust_cache()
            self._experts_doubted = True  # an open span may hold some: they are refilled after it

    def _fail(self, failed: LaunchFailed) -> None:
        """Ends whoever the failed step worked on; who had not begun is scheduled again."""
        begun = (*self.scheduler.abandon_span(), *self._decoding)
        self._decoding = ()
        if isinstance(failed, FailedBefore):
            begun = ()
        if self._launched is not None:  # nothing is read any more of what was under way
            begun, self._launched = (*begun, *self._launched.decode.sequences), None
        sequences = tuple(one for one in begun if one.phase is not Phase.ENDED)
        for sequence in sequences:
            self.scheduler.fail(sequence, sentence(failed))
        self._recover(failed, sequences)

    def _recover(self, failed: LaunchFailed, ended: tuple[Sequence, ...]) -> None:
        """Nothing that the failed launch may have touched is used again."""
        self._not_parked = None
        self._num_failed += 1
        ids = ", ".join(str(sequence.request_id) for sequence in ended)
        self._emit(
            Log(line=f"step {self.steps} failed: {sentence(failed)}; ends: {ids or 'nobody'}")
        )
        broken = why_broken(failed, self._num_failed, survives=self._plan.device.survives_errors)
        if broken:
            self._flush()
            raise EngineBroken(broken) from failed
        self._interpreter.recover()
        self.scheduler.distrust_cache()
        self._refill_experts()

    def _refill_experts(self) -> None:
        """Table and slots may disagree, or a slot may hold what it should not: all from the bank again."""
        self._experts_doubted = False
        position = self._interpreter.position
        position.due(self._interpreter.deadline("prefill"))
        with torch.inference_mode():
            fill_slots(self._plan, self._interpreter.views)

    def _explain_waits(self) -> bool:
        """Whether there was anything to say."""
        lines = self._waits.lines(self.scheduler)
        for line in lines:
            self._emit(Log(line=line))
        return bool(lines)

    def _park(self, moves: tuple[tuple[int, int], ...]) -> None:
        self._flush()
        self._deliver()  # tokens that were drawn do not wait for copies
        try:
            self._interpreter.run("park", NO_ROWS, self._batches.moves(moves))
        except LaunchFailed as failed:  # amid a change of the scheduler's: the step answers for it
            self._not_parked = failed
            raise NotParked from failed

    def _drawn(self, program: str, tokens: Read) -> list[int]:
        drawn = tokens()
        self._interpreter.settle(program)
        return drawn

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
