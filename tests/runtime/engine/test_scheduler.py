"""The scheduler without a model: random requests; each ends once, nobody waits for ever, everything comes back."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from firmtoken.runtime.engine.invariants import check_invariants
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import Add, Admitted, Done, Log, Sampling, Tokens, Up
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Span

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
STOP = 7
LIMITS = Limits(
    page_size=4,
    pages=1 + 16 + 2,
    state_slots=7,
    snapshot_slots=6,
    hybrid=True,
    caching=True,
    max_num_seqs=3,
    prefill_span=16,
    graph_batch_sizes=(1, 2, 3),
    offload=True,
    on_demand_cold=4,
    on_demand_warm=8,
    decode_every_units=2,
    output_reserve=8,
    max_preemptions=2,
    max_passes=4,
    effective_context=64,
)


class NeverStops(random.Random):
    """Draws no stop token and yields nowhere."""

    def randrange(self, *_: int) -> int:  # type: ignore[override]  # only ever asked for a token or for yields
        return 0


def add(request_id: int, prompt: list[int], max_output: int) -> Add:
    return Add(
        request_id=request_id,
        token_ids=prompt,
        max_output=max_output,
        sampling=GREEDY,
        stop_token_ids=[STOP],
    )


@dataclass(slots=True)
class Simulation:
    """An engine without a model: draws random tokens and keeps what a device would have in its memory."""

    scheduler: Scheduler
    random: random.Random
    arrivals: itertools.count = field(default_factory=itertools.count)  # type: ignore[type-arg]
    done: Counter[int] = field(default_factory=Counter)
    ends: dict[int, Done] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    first_admitted: list[int] = field(default_factory=list)
    resumed: Counter[int] = field(default_factory=Counter)
    produced: Counter[int] = field(default_factory=Counter)
    steps: int = 0

    def add(self, request: Add) -> None:
        self.scheduler.add(Sequence.of(request, next(self.arrivals)))

    def step(self, abort: float = 0.0) -> None:
        self.steps += 1
        work = self.scheduler.schedule()
        if isinstance(work, Span):
            self.run_span(work, abort)
        elif isinstance(work, Decode):
            self.run_decode(work)
        self.read(self.scheduler.collect())
        check_invariants(self.scheduler)

    def run_span(self, span: Span, abort: float) -> None:
        assert span.num_tokens <= self.scheduler.limits.prefill_span
        for piece in span.pieces:
            assert len(piece.sequence.pages) * self.scheduler.limits.page_size >= piece.end
            assert piece.final or piece.end % self.scheduler.limits.page_size == 0
        for _ in range(self.random.randrange(4)):
            if self.random.random() < abort:
                self.scheduler.abort(self.random.choice(span.pieces).sequence.request_id)
            decode = self.scheduler.decode_at_yield()
            if decode is not None:
                self.run_decode(decode)
        drawn = {piece.sequence.request_id: self.draw() for piece in span.kept}
        self.scheduler.complete_span(span, drawn)

    def run_decode(self, decode: Decode) -> None:
        page_size = self.scheduler.limits.page_size
        assert decode.size in self.scheduler.limits.graph_batch_sizes
        for sequence in decode.sequences:
            assert sequence.computed == len(sequence.token_ids) - 1
            assert len(sequence.pages) * page_size >= len(sequence.token_ids)
        self.scheduler.complete_decode(
            decode, {sequence.request_id: self.draw() for sequence in decode.sequences}
        )

    def draw(self) -> int:
        return self.random.randrange(8)

    def read(self, messages: list[Up]) -> None:
        for message in messages:
            if isinstance(message, Done):
                self.done[message.request_id] += 1
                self.ends[message.request_id] = message
                assert message.output_tokens == self.produced[message.request_id]
            elif isinstance(message, Tokens):
                for request_id, _ in message.items:
                    assert request_id not in self.done
                    self.produced[request_id] += 1
            elif isinstance(message, Admitted):
                self.admitted.append(message.request_id)
                if message.resumed:
                    self.resumed[message.request_id] += 1
                else:
                    self.first_admitted.append(message.request_id)

    def drain(self, max_steps: int = 5_000) -> None:
        for _ in range(max_steps):
            if self.scheduler.idle:
                break
            self.step()
        self.read(self.scheduler.collect())
        assert self.scheduler.idle, "somebody waits for ever"


def test_a_head_that_waits_for_pages_is_passed_four_times_at_most() -> None:
    simulation = Simulation(Scheduler(LIMITS, lambda moves: None), NeverStops())
    simulation.add(add(0, [1] * 40, 20))
    simulation.step()
    simulation.add(add(1, [2] * 50, 10))
    for request_id in range(2, 9):
        simulation.add(add(request_id, [3], 1))
    simulation.drain()
    assert simulation.admitted == [0, 2, 3, 4, 5, 1, 6, 7, 8]


def test_a_preempted_request_resumes_from_its_shadow_and_keeps_its_text() -> None:
    limits = replace(LIMITS, output_reserve=1, max_num_seqs=2)
    moves: list[tuple[int, int]] = []
    simulation = Simulation(Scheduler(limits, moves.extend), NeverStops())
    simulation.add(add(0, [1] * 20, 40))
    simulation.add(add(1, [2] * 20, 40))
    while simulation.scheduler.preemptions == 0:
        simulation.step()
    youngest = simulation.scheduler.waiting[0]
    assert youngest.request_id == 1 and youngest.output_tokens > 4
    text = list(youngest.token_ids)
    simulation.drain()
    assert youngest.token_ids[: len(text)] == text and len(youngest.token_ids) == 60
    assert simulation.resumed[1] >= 1


@pytest.mark.report(7)
def test_a_request_that_runs_alone_and_finds_no_page_ends_with_an_error() -> None:
    simulation = Simulation(Scheduler(LIMITS, lambda moves: None), NeverStops())
    simulation.add(add(0, [1] * 10, 40))
    simulation.scheduler.schedule()
    holdings = simulation.scheduler.holdings
    holdings.pages.take(holdings.pages.num_free - 3)  # a planted leak
    span = simulation.scheduler.open_span
    assert span is not None
    simulation.scheduler.complete_span(span, {0: 1})
    while not simulation.scheduler.idle:
        work = simulation.scheduler.schedule()
        if isinstance(work, Decode):
            simulation.run_decode(work)
    simulation.read(simulation.scheduler.collect())
    end = simulation.ends[0]
    assert (
        end.reason == "error"
        and end.message
        == "no page left for token 25 of the only running request: "
        "7 pages needed, 6 held, 0 available"
    )


def test_who_waits_is_said_once() -> None:
    simulation = Simulation(Scheduler(LIMITS, lambda moves: None), NeverStops())
    for request_id in range(5):
        simulation.add(add(request_id, [request_id] * 10, 4))
    said = []
    for _ in range(8):
        work = simulation.scheduler.schedule()
        said += [m.line for m in simulation.scheduler.collect() if isinstance(m, Log)]
        if isinstance(work, Span):
            simulation.run_span(work, 0.0)
        elif isinstance(work, Decode):
            simulation.run_decode(work)
    assert said == [
        "request 3 waits, 2 in the queue: 3 of 3 are running",
        "request 4 waits, 1 in the queue: 3 of 3 are running",
    ]


def test_a_request_that_gave_way_goes_to_the_head_of_the_queue() -> None:
    simulation = Simulation(
        Scheduler(replace(LIMITS, output_reserve=1), lambda moves: None), NeverStops()
    )
    simulation.add(add(0, [1] * 20, 40))
    simulation.add(add(1, [2] * 60, 4))  # finds no room
    simulation.add(add(2, [3] * 30, 30))  # passes it
    while simulation.scheduler.preemptions == 0:
        simulation.step()
    assert [waiting.request_id for waiting in simulation.scheduler.waiting] == [2, 1]
    simulation.drain()
    assert simulation.admitted == [0, 2, 2, 1]
