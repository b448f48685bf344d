"""The scheduler without a model: random requests; each ends once, nobody waits for ever, everything comes back."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from firmtoken.compiler.admission import need
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import Add, Admitted, Done, Log, Sampling, Tokens, Up
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.engine.work import Decode, Span
from firmtoken.runtime.memory.shortage import Shortage

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
        check(self.scheduler)

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


def check(scheduler: Scheduler) -> None:
    """What must hold between any two steps."""
    holdings, limits = scheduler.holdings, scheduler.limits
    held: Counter[int] = Counter()
    for member in holdings.members:
        held.update(member.pages)
        assert need(member.computed, 0, limits.page_size) <= len(member.pages)
        assert member.shadow_len % limits.page_size == 0
        assert member.shadow_len <= member.computed
    for node in holdings.cache.nodes():
        held[node.page] += 1
        assert node.users or held[node.page] == 1
    assert holdings.pages.num_free == limits.usable_pages - len(held)
    assert all(holdings.pages._references[page] == count for page, count in held.items())
    assert holdings.available >= 0, "more is promised than there is"
    slots = [slot for member in holdings.members for slot in (member.live, member.shadow)]
    assert not limits.hybrid or (0 not in slots and len(set(slots)) == len(slots))
    assert all(member.phase in (Phase.PREFILL, Phase.DECODE) for member in holdings.members)


def check_empty(scheduler: Scheduler) -> None:
    """Nothing runs: everything is back, but for what the prefix cache keeps."""
    holdings, limits = scheduler.holdings, scheduler.limits
    assert not holdings.members and not scheduler.waiting
    assert holdings.available == limits.usable_pages
    assert holdings.cache.evictable == sum(1 for _ in holdings.cache.nodes())
    assert holdings.states.num_free == max(0, limits.state_slots - 1)
    holdings.cache.evict(limits.usable_pages)
    assert holdings.pages.num_free == limits.usable_pages
    assert holdings.snapshots.num_free == limits.snapshot_slots


def simulate(
    seed: int,
    num_requests: int,
    limits: Limits,
    abort: float,
    make_scheduler: type[Scheduler] = Scheduler,
) -> Simulation:
    rng = random.Random(seed)
    parked: list[tuple[int, int]] = []
    simulation = Simulation(make_scheduler(limits, parked.extend), rng)
    for request_id in range(num_requests):
        prompt = [rng.randrange(2) for _ in range(rng.randint(1, limits.effective_context - 1))]
        if rng.random() < 0.5:
            prompt = prompt[: rng.randint(1, 12)]
        output = rng.randint(1, limits.effective_context - len(prompt))
        simulation.add(add(request_id, prompt, output))
        while len(simulation.scheduler.waiting) > 8 or rng.random() < 0.7:
            simulation.step(abort)
        if rng.random() < abort:
            simulation.scheduler.abort(rng.randint(max(0, request_id - 10), request_id))
    simulation.drain()
    assert all(simulation.done[request_id] == 1 for request_id in range(num_requests))
    assert sum(simulation.done.values()) == num_requests
    assert [done for done in simulation.ends.values() if done.reason == "error"] == []
    check_empty(simulation.scheduler)
    return simulation


@pytest.mark.report(9, 17)
@pytest.mark.parametrize(
    ("limits", "abort"),
    [
        (LIMITS, 0.0),
        (LIMITS, 0.2),
        (replace(LIMITS, hybrid=False, state_slots=0, snapshot_slots=0), 0.1),
        (replace(LIMITS, hybrid=False, state_slots=0, snapshot_slots=0, caching=False), 0.1),
        (replace(LIMITS, snapshot_slots=1, output_reserve=1), 0.1),
        (replace(LIMITS, offload=False, prefill_span=4), 0.1),
        (replace(LIMITS, page_size=1, pages=1 + 64 + 2), 0.1),
    ],
)
def test_each_request_ends_exactly_once_and_everything_comes_back(
    limits: Limits, abort: float
) -> None:
    simulation = simulate(1, 1_500, limits, abort)
    if not abort:
        assert {done.reason for done in simulation.ends.values()} == {"stop", "length"}
        assert simulation.scheduler.preemptions > 0
        assert simulation.scheduler.cached_tokens > 0


def test_ten_thousand_requests() -> None:
    simulate(2, 10_000, LIMITS, 0.1)


@pytest.mark.report(6, 8)
@pytest.mark.parametrize("page_size", [1, 2, 3])
@pytest.mark.parametrize("num_pages", [1, 2, 3, 4])
def test_what_is_admitted_ends_alone_and_what_is_refused_never_could(
    page_size: int, num_pages: int
) -> None:
    context = page_size * num_pages
    limits = replace(
        LIMITS,
        page_size=page_size,
        pages=num_pages + 1,
        prefill_span=page_size,
        effective_context=context,
        output_reserve=1,
    )
    for prompt, output in itertools.product(range(1, context + 2), range(1, context + 2)):
        simulation = Simulation(Scheduler(limits, lambda moves: None), NeverStops())
        simulation.add(add(0, [1] * prompt, output))
        simulation.drain(max_steps=200)
        fits = prompt + output <= context
        end = simulation.ends[0]
        assert end.reason == ("length" if fits else "error")
        assert end.output_tokens == (output if fits else 0)
        assert simulation.scheduler.preemptions == 0
        check_empty(simulation.scheduler)


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
        and end.message == "no page left for token 25 of the only running request"
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


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (simulate(3, 300, LIMITS, 0.1) for _ in range(2))
    assert first.admitted == second.admitted
    assert first.ends == second.ends


@pytest.mark.report(7)
def test_nobody_is_preempted_more_than_twice_nor_passed_without_bound() -> None:
    simulation = simulate(5, 3_000, replace(LIMITS, output_reserve=1), 0.0)
    assert max(simulation.resumed.values()) <= LIMITS.max_preemptions
    # At most 9 wait, and each of those ahead may be passed `max_passes` times while it is the head.
    passed = [
        sum(younger > request_id for younger in simulation.first_admitted[:place])
        for place, request_id in enumerate(simulation.first_admitted)
    ]
    assert 0 < max(passed) <= 10 * LIMITS.max_passes


class ForgetsToReturnPages(Scheduler):
    """A planted fault: an abort inside a span keeps the state slots."""

    def abort(self, request_id: int) -> None:
        if self.open_span is not None:
            member = self._sequences.get(request_id)
            if member is not None and member.phase is Phase.PREFILL:
                self.holdings.states.take(1)
        super().abort(request_id)


class LosesThePreempted(Scheduler):
    """A planted fault: who gave way is never queued again."""

    def _queue(self, sequence: Sequence) -> None:
        if sequence.preemptions:
            sequence.phase = Phase.WAITING
        else:
            super()._queue(sequence)


@pytest.mark.parametrize("broken", [ForgetsToReturnPages, LosesThePreempted])
def test_the_simulation_catches_a_broken_scheduler(broken: type[Scheduler]) -> None:
    with pytest.raises((AssertionError, Shortage)):
        simulate(1, 1_500, LIMITS, 0.2, broken)
