"""Who is admitted with whom, and how a step's work is cut: single decisions of the scheduler, without a simulation."""

from dataclasses import replace

import pytest
from tests.runtime.engine.tiny_limits import TINY

from firmtoken.runtime.engine.messages import Add, Sampling
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Span
from firmtoken.runtime.memory.shortage import NoSequences, NoStateSlots

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)
LIMITS = replace(TINY, pages=1 + 16 + 2)


def add(request_id: int, prompt: list[int], max_output: int) -> Add:
    return Add(
        request_id=request_id,
        token_ids=prompt,
        max_output=max_output,
        sampling=GREEDY,
        stop_token_ids=[],
    )


def test_spans_are_cut_at_pages_and_short_requests_go_on_demand() -> None:
    scheduler = Scheduler(LIMITS, lambda moves: None)
    for request_id, num_tokens in enumerate((10, 3, 9)):
        scheduler.add(Sequence.of(add(request_id, [request_id] * num_tokens, 1), request_id))
    span = scheduler.schedule()
    assert isinstance(span, Span) and span.program == "prefill"
    assert [(p.start, p.end, p.final, p.boundary) for p in span.pieces] == [
        (0, 10, True, 8),
        (0, 3, True, 0),
    ]
    scheduler.complete_span(span, {0: 1, 1: 1})
    span = scheduler.schedule()
    assert isinstance(span, Span)
    assert [(p.start, p.end, p.boundary) for p in span.pieces] == [(0, 9, 8)]
    scheduler.complete_span(span, {2: 1})
    scheduler.add(Sequence.of(add(3, [2] * 9, 1), 3))  # hits two pages, computes one token
    span = scheduler.schedule()
    assert isinstance(span, Span) and span.program == "extend"
    assert [(p.start, p.end, p.first) for p in span.pieces] == [(8, 9, True)]


@pytest.mark.parametrize("behind", [(), (3,), (10,), (3, 10, 3)])
def test_a_short_head_runs_alone_whoever_waits_behind_it(behind: tuple[int, ...]) -> None:
    scheduler = Scheduler(LIMITS, lambda moves: None)
    for request_id, num_tokens in enumerate((3, *behind)):
        scheduler.add(Sequence.of(add(request_id, [request_id] * num_tokens, 1), request_id))
    span = scheduler.schedule()
    assert isinstance(span, Span) and span.program == "extend"
    assert [p.sequence.request_id for p in span.pieces] == [0]


def test_a_prefix_that_is_cached_meanwhile_lets_a_waiting_request_in_at_once() -> None:
    scheduler = Scheduler(replace(LIMITS, pages=1 + 12, output_reserve=1), lambda moves: None)
    text = [1] * 32
    scheduler.add(Sequence.of(add(0, [*text, 2], 8), 0))  # 9 pages, of which 8 can be shared
    scheduler.add(Sequence.of(add(1, [*text, 3], 8), 1))  # 9 pages, 3 are left
    for _ in range(3):  # spans of 16, 16 and 1 token; 1 waits until the first is cached
        span = scheduler.schedule()
        assert isinstance(span, Span)
        assert scheduler.waiting == [] or len(span.pieces) == 1
        if not scheduler.waiting:
            break
        scheduler.complete_span(span, {0: 1} if span.pieces[0].final else {})
    assert [member.request_id for member in scheduler.running] == [0, 1]


def test_who_waits_for_a_running_one_to_end_is_told_from_who_waits_for_states() -> None:
    few = replace(LIMITS, state_slots=3)  # one live, one shadow, and the padding's
    for limits, shortage in ((replace(LIMITS, max_num_seqs=1), NoSequences), (few, NoStateSlots)):
        scheduler = Scheduler(limits, lambda moves: None)
        for request_id in range(2):
            scheduler.add(Sequence.of(add(request_id, [request_id] * 9, 1), request_id))
        scheduler.schedule()
        assert isinstance(scheduler.waiting[0].shortage, shortage)
