"""The scheduler without a model: random requests on a device that only remembers texts, and what must hold of each."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.runtime.engine.text_device import EMPTY_TEXT, VOCAB, TextDevice, drawn, extended

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.holdings import NotParked
from firmtoken.runtime.engine.invariants import check_invariants
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import Add, Admitted, Done, Preempted, Sampling, Tokens, Up
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.engine.work import Decode, Span

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
STOP = 7
FAILED = "the step failed"


class StepFailed(Exception):
    """A launch failed; whatever it worked on is lost."""


class FailedBefore(StepFailed):
    """It failed before it began: nobody lost anything."""


@dataclass(slots=True)
class Request:
    """What the simulation knows of one request."""

    add: Add
    arrival: int
    marks: list[int]
    """Of its text's first n tokens, by n."""
    steps_at_arrival: int
    work_in_front: int
    """Steps that those ahead can make it wait: whoever was there, and whoever passed it."""
    passed: int = 0
    admitted: bool = False
    output: list[int] = field(default_factory=list)
    token_at: int | None = None
    """Step of its last token; None while it waits or prefills."""


@dataclass(slots=True)
class Simulation:
    """Drives a scheduler as `Engine` does, with yields at which requests come and go."""

    limits: Limits
    random: random.Random
    check_every: int = 1
    abort: float = 0.0
    """How likely somebody leaves, at each step and at each yield."""
    fail: float = 0.0
    """How likely a step fails, a token has no finite logits, or a state cannot be parked."""
    arrive_at_yields: float = 0.0
    ahead: bool = False
    """Steps are launched before the tokens of the last one are read; the device does one after the other."""
    stop_token_ids: tuple[int, ...] = (STOP,)
    make_scheduler: type[Scheduler] = Scheduler
    device: TextDevice = field(init=False)
    scheduler: Scheduler = field(init=False)
    requests: dict[int, Request] = field(default_factory=dict)
    """Those that have not ended."""
    texts: list[list[int]] = field(default_factory=list)
    """Texts to begin prompts with."""
    num_added: int = 0
    steps: int = 0
    units: int = 0
    decoding: tuple[Sequence, ...] = ()
    """Whose decode step has not gone through yet."""
    launched: tuple[Decode, list[int]] | None = None
    """The next step and what it draws, if it was launched ahead."""
    not_parked: bool = False
    work: int = 0
    """Steps that all that are here can take."""
    seen: Counter[str] = field(default_factory=Counter)
    ends: dict[int, Done] | None = None
    """By request id, if somebody wants to know."""
    most_passed: int = 0
    longest_wait: int = 0
    outcome: Any = field(default_factory=hashlib.sha256)

    def __post_init__(self) -> None:
        self.device = TextDevice(self.limits)
        self.scheduler = self.make_scheduler(self.limits, self.park)
        length = self.limits.effective_context
        self.texts = [[self.random.randrange(VOCAB) for _ in range(length)] for _ in range(4)]

    @property
    def idle(self) -> bool:
        """As `Engine.idle`."""
        return self.scheduler.idle and self.launched is None

    def add(self, prompt: list[int], max_output: int) -> int:
        """A request comes."""
        request_id = self.num_added
        self.num_added += 1
        request = Add(
            request_id=request_id,
            token_ids=prompt,
            max_output=max_output,
            sampling=GREEDY,
            stop_token_ids=[*self.stop_token_ids],
        )
        marks = [EMPTY_TEXT]
        for token in prompt:
            marks.append(extended(marks[-1], token))
        self.requests[request_id] = Request(request, request_id, marks, self.steps, self.work)
        self.work += self.life(request)
        self.scheduler.add(Sequence.of(request, request_id))
        return request_id

    def life(self, request: Add) -> int:
        """Steps that can go to a request: its pages and one more after each preemption, its output once, its end."""
        pages = need(len(request.token_ids), request.max_output, self.limits.page_size)
        return (1 + self.limits.max_preemptions) * (pages + 2) + request.max_output + 1

    def arrive(self) -> None:
        """A random request: sometimes a known text goes on, sometimes it is new; both short and long."""
        context, draw = self.limits.effective_context, self.random.random
        length = int(draw() ** 3 * (context - 2))
        text = self.random.choice(self.texts)[:length] if draw() < 0.7 else []
        rest = max(0, length - len(text)) if draw() < 0.3 else int(draw() * 3)
        prompt = text + [self.random.randrange(VOCAB) for _ in range(1 + rest)]
        prompt = prompt[: context - 1]
        self.add(prompt, 1 + int(draw() * (context - len(prompt))))

    def leave(self) -> None:
        """Somebody goes, whatever phase it is in; perhaps it has ended already."""
        recent = max(0, self.num_added - 1 - int(self.random.random() * 12))
        span = self.scheduler.open_span
        pieces = span.pieces if span is not None else ()
        known = [piece.sequence.request_id for piece in pieces]
        known += [member.request_id for member in self.scheduler.running]
        request_id = self.random.choice((recent, *known))
        sequence = self.scheduler._sequences.get(request_id)
        where = "ended" if sequence is None else sequence.phase.value
        if sequence in [piece.sequence for piece in pieces]:
            where = "in the span"
        self.seen[f"abort {where}"] += 1
        self.scheduler.abort(request_id)
        self.scheduler.abort(request_id)

    def step(self) -> None:
        """As `Engine.step`."""
        self.steps += 1
        preempted = self.scheduler.preemptions
        work = self.scheduler.schedule() if self.launched is None else self.launched[0]
        self.read(self.scheduler.collect())
        if self.not_parked:  # of those that gave way: what was scheduled has not begun
            self.scheduler.abandon_span()
            self.recover()
        else:
            self.run_work(work)
        if work is None:
            # The only decoding sequence may have given way to one that prefills: the next step is a span.
            gave_way = self.scheduler.preemptions > preempted
            assert gave_way or self.idle, "nothing is computed, and somebody waits"
        self.read(self.scheduler.collect())
        if self.steps % self.check_every == 0:
            check_invariants(self.scheduler)

    def step_until(self, condition: Callable[[], bool], max_steps: int = 1_000) -> None:
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError("it never came to that")

    def run_work(self, work: Span | Decode | None) -> None:
        try:
            if isinstance(work, Span):
                self.run_span(work)
            elif work is not None:
                self.run_decode(work)
            self.go_on()
        except FailedBefore:
            self.scheduler.abandon_span()
            self.end(())
        except StepFailed:
            launched = () if self.launched is None else self.launched[0].sequences
            lost = (*self.scheduler.abandon_span(), *self.decoding, *launched)
            self.launched = None
            self.end(tuple(one for one in lost if one.phase is not Phase.ENDED))

    def run_span(self, span: Span) -> None:
        """Yields first and computes at the end: whatever is overwritten in between shows."""
        assert span.num_tokens <= self.limits.prefill_span
        self.maybe_fail(FailedBefore)
        for _ in range(int(self.random.random() * 5)):
            if self.random.random() < self.abort:
                self.leave()
                if not span.kept:
                    self.seen["abandoned"] += 1
                    break
            elif self.random.random() < self.arrive_at_yields:
                self.arrive()
            self.decode_between()
        self.maybe_fail(StepFailed)
        tokens: dict[int, int] = {}
        for piece in span.kept:
            marks = self.requests[piece.sequence.request_id].marks
            tokens[piece.sequence.request_id] = drawn(self.device.prefill(piece, marks))
        for piece in span.kept:
            self.maybe_end(piece.sequence)
        self.scheduler.complete_span(span, tokens)

    def decode_between(self) -> None:
        self.units += 1
        if self.units < self.limits.decode_every_units:
            return
        decode = self.scheduler.decode_at_yield()
        if decode is not None:
            self.seen["decode at a yield"] += 1
            try:
                self.run_decode(decode)
            except FailedBefore as failed:  # not of this batch; but the span around it is lost
                self.decoding = ()
                raise StepFailed from failed
            self.read(self.scheduler.collect())
            self.go_on()

    def run_decode(self, decode: Decode) -> None:
        self.units = 0
        assert len(decode.sequences) <= decode.size
        assert decode.size in self.limits.graph_batch_sizes
        (_, drawn_now), self.launched = self.launched or self.launch(decode, []), None
        if self.ahead and self.scheduler.open_span is None:
            following = self.scheduler.following(decode)
            self.launched = following and self.launch(following, drawn_now)
        self.decoding = ()
        ids = (sequence.request_id for sequence in decode.sequences)
        tokens = dict(zip(ids, drawn_now, strict=True))
        here = [one for one in decode.sequences if one.phase is Phase.DECODE]
        self.seen["row of one that ended"] += len(decode.sequences) - len(here)
        kept = tuple(sequence for sequence in here if not self.maybe_end(sequence))
        self.scheduler.complete_decode(replace(decode, sequences=kept), tokens)

    def launch(self, decode: Decode, before: list[int]) -> tuple[Decode, list[int]]:
        """The step and what it draws; `before`: what nobody has seen yet of the step that it follows."""
        self.decoding = decode.sequences
        self.maybe_fail(FailedBefore if not decode.ahead else StepFailed)
        self.maybe_fail(StepFailed)
        tokens = []
        for row, sequence in enumerate(decode.sequences):
            marks = self.requests[sequence.request_id].marks
            if decode.ahead:
                self.seen["row ahead"] += 1
                marks = [*marks, extended(marks[-1], before[row])]
            tokens.append(drawn(self.device.decode(sequence, marks)))
        return decode, tokens

    def fails(self) -> bool:
        """Draws nothing where nothing fails, so that outcomes there depend on less."""
        return self.fail > 0 and self.random.random() < self.fail

    def maybe_fail(self, kind: type[StepFailed]) -> None:
        if self.fails():
            self.seen[kind.__name__] += 1
            raise kind

    def maybe_end(self, sequence: Sequence) -> bool:
        """Its logits are not finite: as `Engine` answers it."""
        if not self.fails():
            return False
        self.seen["not finite"] += 1
        self.scheduler.fail(sequence, FAILED)
        self.distrust()
        return True

    def park(self, moves: tuple[tuple[int, int], ...]) -> None:
        if self.fails():
            self.seen["not parked"] += 1
            self.not_parked = True
            raise NotParked
        self.device.park(moves)

    def go_on(self) -> None:
        """A state could not be parked amid a change of the scheduler's: the step answers for it."""
        if self.not_parked:
            raise StepFailed

    def end(self, sequences: tuple[Sequence, ...]) -> None:
        """As `Engine` answers a launch that failed: these are lost, nobody else."""
        for sequence in sequences:
            self.scheduler.fail(sequence, FAILED)
        self.recover()

    def recover(self) -> None:
        self.decoding, self.not_parked = (), False
        self.distrust()
        for request in self.requests.values():  # a decode step may be lost: no token is due
            request.token_at = None

    def distrust(self) -> None:
        """From now on nothing but what somebody runs on is what it was."""
        self.scheduler.distrust_cache()
        self.device.lose_all_but(self.scheduler.running)

    def read(self, messages: list[Up]) -> None:
        """What the server is told."""
        for message in messages:
            if isinstance(message, Tokens):
                for request_id, token in message.items:
                    self.read_token(self.requests[request_id], token)
            elif isinstance(message, Done):
                self.read_done(message)
            elif isinstance(message, Admitted):
                self.read_admitted(message)
            elif isinstance(message, Preempted):
                self.seen["preempted"] += 1
                self.requests[message.request_id].token_at = None

    def read_token(self, request: Request, token: int) -> None:
        assert token == drawn(request.marks[-1]), "not what this text goes on with"
        if request.token_at is not None:
            assert self.steps - request.token_at <= 2, (
                "a span after a span, and streams stand still"
            )
        request.token_at = self.steps
        request.output.append(token)
        request.marks.append(extended(request.marks[-1], token))

    def read_admitted(self, message: Admitted) -> None:
        request = self.requests[message.request_id]
        if message.resumed:
            self.seen["resumed"] += 1
            return
        self.seen["hit"] += message.cached_tokens > 0
        request.admitted = True
        life = self.life(request.add)
        for waiting in self.scheduler.waiting:
            other = self.requests[waiting.request_id]
            if not other.admitted and other.arrival < request.arrival:
                other.passed += 1
                other.work_in_front += life
                # A pass counts for everybody who is passed: who counts it for the head of the queue only, lets the
                # second be passed for ever, as long as those that passed give way and are the head in their turn.
                assert other.passed <= self.limits.max_passes, "passed more often than D3 allows"
        waited = self.steps - request.steps_at_arrival
        assert waited <= 1 + request.work_in_front, "waited longer than those in front can work"
        self.most_passed = max(self.most_passed, request.passed)
        self.longest_wait = max(self.longest_wait, waited)

    def read_done(self, message: Done) -> None:
        request = self.requests.pop(message.request_id)  # a second end finds nothing
        self.work -= self.life(request.add)
        self.seen[message.reason] += 1
        self.seen["refused"] += message.message not in ("", FAILED)
        output = request.output
        assert message.output_tokens == len(output) <= request.add.max_output
        assert not {*self.stop_token_ids} & {*output[:-1]}
        assert (message.reason == "stop") == (output[-1:] in [[one] for one in self.stop_token_ids])
        if message.reason == "length":
            assert len(output) == request.add.max_output
        if self.ends is not None:
            self.ends[message.request_id] = message
        if len(output) > 8 and self.random.random() < 0.2:
            self.texts[int(self.random.random() * 4)] = request.add.token_ids + output
        line = (message.request_id, message.reason, message.cached_tokens, request.marks[-1])
        self.outcome.update(repr(line).encode())

    def run(self, num_requests: int) -> None:
        """Requests come in bursts and in drops; then all of it ends, and everything is back."""
        rate, draw = 0.5, self.random.random
        while self.num_added < num_requests or not self.idle:
            if draw() < 0.02:
                rate = self.random.choice((0.05, 0.3, 0.9))
            while (
                self.num_added < num_requests and len(self.scheduler.waiting) < 8 and draw() < rate
            ):
                self.arrive()
            if draw() < self.abort:
                self.leave()
            self.step()
        self.check_empty()

    def check_empty(self) -> None:
        """Nobody is here: all is back, but for what the prefix cache keeps; and that can be had back."""
        holdings, limits = self.scheduler.holdings, self.limits
        check_invariants(self.scheduler)
        assert not self.requests, "somebody never ended"
        assert self.work == 0
        assert holdings.available == limits.usable_pages
        holdings.cache.evict(limits.usable_pages)
        assert holdings.pages.num_free == limits.usable_pages
        assert holdings.snapshots.num_free == limits.snapshot_slots
        assert holdings.states.num_free == max(0, limits.state_slots - 1)
