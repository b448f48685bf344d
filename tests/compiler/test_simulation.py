"""Streams and events on paper."""

import pytest

from firmtoken.compiler.program import Value
from firmtoken.compiler.simulation import Arrow, Task, simulate

DONE, OTHER = Value("done"), Value("other")


def test_launches_of_a_stream_follow_each_other() -> None:
    runs = simulate([Task(stream="main", seconds=2.0), Task(stream="main", seconds=3.0)])
    assert [(run.start, run.end) for run in runs] == [(0.0, 2.0), (2.0, 5.0)]


def test_streams_run_beside_each_other_until_an_event() -> None:
    first, beside, joined = simulate(
        [
            Task(stream="main", seconds=2.0),
            Task(stream="link", seconds=5.0, records=(DONE,)),
            Task(stream="main", seconds=1.0, waits=(DONE,)),
        ]
    )
    assert (first.end, beside.start, joined.start, joined.free) == (2.0, 0.0, 5.0, 2.0)
    assert joined.arrows == (Arrow(source=1, at=5.0),)


def test_an_event_long_past_holds_nothing_up() -> None:
    tasks = [
        Task(stream="link", seconds=1.0, records=(DONE,)),
        Task(stream="main", seconds=4.0),
        Task(stream="main", seconds=1.0, waits=(DONE,)),
    ]
    late = simulate(tasks)[2]
    assert (late.start, late.free, late.arrows[0].at) == (4.0, 4.0, 1.0)


def test_a_wait_takes_the_last_record_before_it_and_none_that_never_was() -> None:
    tasks = [
        Task(stream="link", seconds=1.0, records=(DONE,)),
        Task(stream="link", seconds=1.0, records=(DONE,)),
        Task(stream="main", seconds=1.0, waits=(DONE, OTHER)),
        Task(stream="link", seconds=9.0, records=(DONE,)),
    ]
    waiting = simulate(tasks)[2]
    assert waiting.start == pytest.approx(2.0)
    assert [arrow.source for arrow in waiting.arrows] == [1]
