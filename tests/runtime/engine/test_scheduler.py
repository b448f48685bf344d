"""The scheduler without a model, by hand: who passes whom, who gives way, what is said of those who wait."""

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from tests.runtime.engine.tiny_limits import TINY

from firmtoken.runtime.engine.invariants import check_invariants
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import Add, Admitted, Done, Log, Sampling, Tokens, Up
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Span

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
STOP = 7
LIMITS = replace(TINY, pages=1 + 16 + 2)


def add(request_id: int, prompt: list[int], max_output: int) -> Add:
    return Add(
        request_id=request_id,
        token_ids=prompt,
        max_output=max_output,
        sampling=GREEDY,
        stop_token_ids=[STOP],
    )


@dataclass(slots=True)
class Driven:
    """A scheduler, a device that draws the token 0 and never yields, and what was said."""

    scheduler: Scheduler
    arrivals: itertools.count = field(default_factory=itertools.count)  # type: ignore[type-arg]
    ends: dict[int, Done] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    resumed: Counter[int] = field(default_factory=Counter)
    produced: Counter[int] = field(default_factory=Counter)

    def add(self, request: Add) -> None:
        self.scheduler.add(Sequence.of(request, next(self.arrivals)))

    def step(self) -> None:
        self.compute(self.scheduler.schedule())
        self.read(self.scheduler.collect())
        check_invariants(self.scheduler)

    def compute(self, work: Span | Decode | None) -> None:
        if isinstance(work, Span):
            self.run_span(work)
        elif work is not None:
            self.run_decode(work)

    def run_span(self, span: Span) -> None:
        assert span.num_tokens <= self.scheduler.limits.prefill_span
        for piece in span.pieces:
            assert len(piece.sequence.pages) * self.scheduler.limits.page_size >= piece.end
            assert piece.final or piece.end % self.scheduler.limits.page_size == 0
        self.scheduler.complete_span(span, {piece.sequence.request_id: 0 for piece in span.kept})

    def run_decode(self, decode: Decode) -> None:
        page_size = self.scheduler.limits.page_size
        assert decode.size in self.scheduler.limits.graph_batch_sizes
        for sequence in decode.sequences:
            assert sequence.computed == len(sequence.token_ids) - 1
            assert len(sequence.pages) * page_size >= len(sequence.token_ids)
        self.scheduler.complete_decode(decode, {one.request_id: 0 for one in decode.sequences})

    def read(self, messages: list[Up]) -> None:
        for message in messages:
            if isinstance(message, Done):
                assert message.request_id not in self.ends
                self.ends[message.request_id] = message
                assert message.output_tokens == self.produced[message.request_id]
            elif isinstance(message, Tokens):
                for request_id, _ in message.items:
                    assert request_id not in self.ends
                    self.produced[request_id] += 1
            elif isinstance(message, Admitted):
                self.admitted.append(message.request_id)
                self.resumed[message.request_id] += message.resumed

    def step_until(self, condition: Callable[[], object], max_steps: int = 5_000) -> None:
        for _ in range(max_steps):
            if condition():
                return
            self.step()
        raise AssertionError("somebody waits for ever")

    def drain(self) -> None:
        self.step_until(lambda: self.scheduler.idle)
        self.read(self.scheduler.collect())


def driven(limits: Limits = LIMITS) -> Driven:
    return Driven(Scheduler(limits, lambda moves: None))


def test_a_head_that_waits_for_pages_is_passed_four_times_at_most() -> None:
    run = driven()
    run.add(add(0, [1] * 40, 20))
    run.step()
    run.add(add(1, [2] * 50, 10))
    for request_id in range(2, 9):
        run.add(add(request_id, [3], 1))
    run.drain()
    assert run.admitted == [0, 2, 3, 4, 5, 1, 6, 7, 8]


def test_a_preempted_request_resumes_from_a_parked_state_and_keeps_its_text() -> None:
    limits = replace(LIMITS, output_reserve=1, max_num_seqs=2)
    moves: list[tuple[int, int]] = []
    run = Driven(Scheduler(limits, moves.extend))
    run.add(add(0, [1] * 20, 40))
    run.add(add(1, [2] * 20, 40))
    run.step_until(lambda: run.scheduler.preemptions)
    youngest = run.scheduler.waiting[0]
    assert youngest.request_id == 1 and youngest.output_tokens > 4
    text, slots = list(youngest.token_ids), [slot for _, slot in moves]
    run.step_until(lambda: run.resumed[1])
    assert youngest.hit_tokens > 0 and youngest.hit_snapshot in slots
    run.drain()
    assert youngest.token_ids[: len(text)] == text and len(youngest.token_ids) == 60


@pytest.mark.report(7)
def test_a_request_that_runs_alone_and_finds_no_page_ends_with_an_error() -> None:
    run = driven()
    run.add(add(0, [1] * 10, 40))
    run.scheduler.schedule()
    holdings = run.scheduler.holdings
    holdings.pages.take(holdings.pages.num_free - 3)  # a planted leak
    span = run.scheduler.open_span
    assert span is not None
    run.scheduler.complete_span(span, {0: 1})
    for _ in range(100):  # not `step`: a leak is just what the invariants would find
        run.compute(run.scheduler.schedule())
    run.read(run.scheduler.collect())
    end = run.ends[0]
    assert (
        end.reason == "error"
        and end.message
        == "no page left for token 25 of the only running request: "
        "7 pages needed, 6 held, 0 available"
    )


def test_who_waits_is_said_once() -> None:
    run = driven()
    for request_id in range(5):
        run.add(add(request_id, [request_id] * 10, 4))
    said = []
    for _ in range(8):
        work = run.scheduler.schedule()
        said += [m.line for m in run.scheduler.collect() if isinstance(m, Log)]
        run.compute(work)
    assert said == [
        "request 3 waits, 2 in the queue: 3 of 3 are running",
        "request 4 waits, 1 in the queue: 3 of 3 are running",
    ]


def test_a_request_that_gave_way_goes_to_the_head_of_the_queue() -> None:
    run = driven(replace(LIMITS, output_reserve=1))
    run.add(add(0, [1] * 20, 40))
    run.add(add(1, [2] * 60, 4))  # finds no room
    run.add(add(2, [3] * 30, 30))  # passes it
    run.step_until(lambda: run.scheduler.preemptions)
    assert [waiting.request_id for waiting in run.scheduler.waiting] == [2, 1]
    run.drain()
    assert run.admitted == [0, 2, 2, 1]
