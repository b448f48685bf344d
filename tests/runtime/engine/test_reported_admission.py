"""Faults of admission that users of other servers reported, with the numbers of their reports; no model runs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import Add, Done, Sampling, Up
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Span

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
LIMITS = Limits(
    page_size=16,
    pages=1 + 16,
    state_slots=0,
    snapshot_slots=0,
    hybrid=False,
    caching=True,
    max_num_seqs=2,
    prefill_span=64,
    graph_batch_sizes=(1, 2),
    prefill_graph_rows=(),
    offload=False,
    on_demand_cold=0,
    on_demand_warm=0,
    decode_every_units=2,
    output_reserve=1024,
    max_preemptions=2,
    max_passes=4,
    effective_context=256,
)


@dataclass(slots=True)
class Run:
    """A scheduler and a device that draws the token 1."""

    scheduler: Scheduler
    ends: dict[int, Done] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    arrivals: int = 0

    def add(self, request_id: int, prompt_tokens: int, max_output: int) -> None:
        """A prompt that shares no page with another's."""
        request = Add(
            request_id=request_id,
            token_ids=[request_id] * prompt_tokens,
            max_output=max_output,
            sampling=GREEDY,
            stop_token_ids=[],
        )
        self.scheduler.add(Sequence.of(request, self.arrivals))
        self.arrivals += 1

    def step(self) -> None:
        work = self.scheduler.schedule()
        if isinstance(work, Span):
            self.spans.append(work)
            self.scheduler.complete_span(
                work, {piece.sequence.request_id: 1 for piece in work.kept if piece.final}
            )
        elif work is not None:
            self.scheduler.complete_decode(work, {one.request_id: 1 for one in work.sequences})
        self.read(self.scheduler.collect())
        assert self.scheduler.holdings.available >= 0, "more is promised than there is"

    def read(self, messages: list[Up]) -> None:
        self.ends |= {one.request_id: one for one in messages if isinstance(one, Done)}

    def drain(self) -> None:
        self.step_until(lambda: self.scheduler.idle)

    def step_until(self, condition: Callable[[], object]) -> None:
        for _ in range(10_000):
            if condition():
                return
            self.step()
        raise AssertionError("somebody waits for ever")

    def said(self) -> dict[int, tuple[str, int]]:
        self.drain()
        return {one: (done.reason, done.output_tokens) for one, done in self.ends.items()}


def run_of(limits: Limits) -> Run:
    return Run(Scheduler(limits, lambda moves: None))


@pytest.mark.report(6)
def test_every_length_up_to_the_advertised_limit_runs_on_an_empty_pool() -> None:
    pool = 190_784
    limits = replace(
        LIMITS,
        page_size=64,
        pages=1 + pool // 64,
        prefill_span=65_536,
        max_num_seqs=1,
        effective_context=pool,
        caching=False,
    )
    for length in range(190_720, pool):
        run = run_of(limits)
        run.add(length, length, 1)
        assert run.said() == {length: ("length", 1)}
        assert run.scheduler.preemptions == 0
    run = run_of(limits)
    run.add(1, pool, 1)
    run.read(run.scheduler.collect())
    assert run.ends[1].reason == "error"


@pytest.mark.report(6)
def test_a_queued_request_that_is_cancelled_leaves_an_empty_and_working_queue() -> None:
    run = run_of(LIMITS)
    run.add(1, 200, 50)
    run.step()
    run.add(2, 250, 6)
    run.step()
    assert [one.request_id for one in run.scheduler.waiting] == [2]
    run.scheduler.abort(2)
    assert run.scheduler.waiting == []
    run.add(3, 250, 6)
    assert run.said() == {2: ("abort", 0), 1: ("length", 50), 3: ("length", 6)}
    assert run.scheduler.holdings.available == run.scheduler.limits.usable_pages


@pytest.mark.report(7)
def test_a_lone_request_reaches_the_whole_context_and_never_gives_way_to_itself() -> None:
    run = run_of(replace(LIMITS, output_reserve=1, caching=False))
    run.add(1, 100, 156)
    assert run.said() == {1: ("length", 156)}
    assert run.scheduler.preemptions == 0


@pytest.mark.report(8)
@pytest.mark.parametrize("max_output", [8, 88])
def test_a_pool_of_69_blocks_runs_a_prompt_of_1000(max_output: int) -> None:
    # One of the blocks is the sentinel; 68 hold 1,088 tokens.
    limits = replace(LIMITS, pages=69, effective_context=68 * 16)
    run = run_of(limits)
    run.add(1, 1000, max_output)
    assert run.said() == {1: ("length", max_output)}


@pytest.mark.report(9)
@pytest.mark.parametrize("output_reserve", [1, 16, 1024])
def test_two_whose_prompts_fit_together_but_not_their_outputs_both_end_whole(
    output_reserve: int,
) -> None:
    run = run_of(replace(LIMITS, output_reserve=output_reserve))
    run.add(1, 100, 100)
    run.add(2, 100, 100)
    assert run.said() == {1: ("length", 100), 2: ("length", 100)}
    assert (run.scheduler.preemptions > 0) == (output_reserve < 100)


@pytest.mark.report(14)
def test_a_text_that_is_computed_again_is_cut_like_any_other() -> None:
    run = run_of(replace(LIMITS, output_reserve=1, caching=False))
    run.add(1, 100, 150)
    run.add(2, 100, 150)
    run.step_until(lambda: run.scheduler.preemptions)
    run.spans.clear()
    assert run.said() == {1: ("length", 150), 2: ("length", 150)}
    again = [piece for span in run.spans for piece in span.pieces]
    assert len(again) > 1 and {piece.sequence.request_id for piece in again} == {2}
    assert again[0].start == 0 and again[-1].end > 100
    assert max(span.num_tokens for span in run.spans) <= 64


@pytest.mark.report(14)
def test_requests_that_fail_do_not_harm_the_next() -> None:
    run = run_of(LIMITS)
    for request_id in range(1, 4):
        run.add(request_id, 256, 1)
    run.add(4, 255, 1)
    said = run.said()
    assert {reason for reason, _ in (said[one] for one in (1, 2, 3))} == {"error"}
    assert said[4] == ("length", 1)


@pytest.mark.report(17)
def test_a_chunk_that_finds_no_pages_waits_until_there_are() -> None:
    # 64 pages of 64 tokens: the first leaves 704 tokens, the second wants a chunk of 2,048.
    limits = replace(
        LIMITS, page_size=64, pages=1 + 64, prefill_span=2048, effective_context=4096, caching=False
    )
    run = run_of(limits)
    run.add(1, 3380, 12)
    run.step()
    run.add(2, 2048, 8)

    def first_has_ended() -> bool:
        if 1 in run.ends:
            return True
        assert [one.request_id for one in run.scheduler.waiting] in ([], [2])
        assert len(run.scheduler.running) == 1
        assert run.scheduler.holdings.pages.num_free * 64 >= 704
        return False

    run.step_until(first_has_ended)
    assert run.said() == {1: ("length", 12), 2: ("length", 8)}


@pytest.mark.report(52)
def test_who_finds_every_snapshot_in_use_is_served_and_not_cached() -> None:
    limits = replace(LIMITS, hybrid=True, state_slots=5, snapshot_slots=1)
    run = run_of(limits)
    run.add(1, 40, 1)
    run.drain()
    run.add(1, 40, 60)  # reads the only snapshot as long as it runs
    run.step()
    [reader] = run.scheduler.running
    assert reader.hit_snapshot is not None
    for request_id in range(2, 8):
        run.add(request_id, 40, 5)
        run.step_until(lambda end=request_id: end in run.ends)
        assert run.ends[request_id].reason == "length"
    assert run.scheduler.running == (reader,)
    assert run.scheduler.holdings.cache.match([2] * 40).pages == ()
    assert run.said()[1] == ("length", 60)
