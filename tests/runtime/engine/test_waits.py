"""Who waits is told why, every five seconds, for as long as it takes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.runtime.engine.tiny_limits import TINY

from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.engine.messages import Add, Log, Sampling, Tokens
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.waits import Waits

Prompt = Callable[..., list[int]]
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


class Queue:
    """A scheduler that admits and computes nothing more, and what is said of its queue."""

    def __init__(self, limits: Limits) -> None:
        self.now = 100.0
        self.scheduler = Scheduler(limits, lambda moves: None)
        self._waits = Waits(lambda: self.now)

    def add(self, request_id: int, num_tokens: int, max_output: int = 4) -> None:
        message = Add(
            request_id=request_id,
            token_ids=[request_id] * num_tokens,
            max_output=max_output,
            sampling=GREEDY,
            stop_token_ids=[],
        )
        self.scheduler.add(Sequence.of(message, request_id))

    def said_at(self, second: float) -> list[str]:
        self.now = 100.0 + second
        return self._waits.lines(self.scheduler)


@pytest.mark.report(1)
def test_who_waits_is_said_every_five_seconds_with_the_numbers() -> None:
    queue = Queue(TINY)
    queue.add(1, 40)  # 11 of 16 pages
    queue.scheduler.schedule()
    queue.add(7, 36)
    queue.scheduler.abandon_span()
    queue.scheduler.schedule()
    assert queue.said_at(0) == queue.said_at(4.9) == []
    line = "request 7 waits since 5 s, 1 in the queue: 10 of 10 pages wanted, 5 available"
    assert queue.said_at(5) == [line]
    assert queue.said_at(9.9) == []
    queue.add(8, 1)
    assert queue.said_at(10.1) == [line.replace("5 s, 1", "10 s, 2")]
    assert queue.said_at(15.2) == [
        line.replace("5 s, 1", "15 s, 2"),
        "request 8 waits since 5 s, 2 in the queue: "
        "request 7 is ahead of it: 10 of 10 pages wanted, 5 available",
    ]


def test_who_came_during_a_step_waits_for_what_it_computes() -> None:
    queue = Queue(TINY)
    queue.add(1, 40)
    queue.scheduler.schedule()
    queue.add(2, 3)
    queue.said_at(0)
    assert queue.said_at(6) == [
        "request 2 waits since 6 s, 1 in the queue: 16 tokens of 1 running requests are computed first"
    ]


def test_a_wait_that_ended_is_forgotten() -> None:
    queue = Queue(replace(TINY, max_num_seqs=1))
    queue.add(1, 4)
    queue.scheduler.schedule()
    queue.add(2, 4)
    queue.said_at(0)
    queue.scheduler.abort(2)
    assert queue.said_at(6) == []
    queue.add(2, 4)
    assert queue.said_at(7) == queue.said_at(11) == []
    assert len(queue.said_at(12)) == 1


def test_it_is_said_during_a_long_span_too(start, prompt: Prompt) -> None:
    bench = start("tiny-cpu", "serving.context=512", "serving.requests=1")
    bench.add(1, prompt(300, 1), 1)
    bench.add(2, prompt(30, 2), 1)

    def second_passes() -> None:
        bench.now += 1

    bench.at_poll = second_passes
    bench.engine.step()
    lines = [m.line if isinstance(m, Log) else type(m).__name__ for m in bench.messages]
    said = "request 2 waits since 5 s, 1 in the queue: 1 of 1 are running"
    assert said in lines[: lines.index("Tokens")]
    assert lines.index(said) + 1 in bench.deliveries  # at once
    bench.drain()
    assert any(isinstance(m, Tokens) and m.items[0][0] == 2 for m in bench.messages)
