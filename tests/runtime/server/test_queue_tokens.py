"""The queue's second bound by HTTP: prompt tokens that wait."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.runtime.waiting import until

LONG = [1] * 999


def test_a_queue_full_of_tokens_is_429_with_both_numbers(serve: Callable[..., Any]) -> None:
    running = serve({"stall": True, "slots": 1}, plan={"max_num_seqs": 1})
    client = running.client()

    def begin(prompt: list[int]) -> Any:
        return client.completions.create(model="tiny", prompt=prompt, stream=True)

    streams = [begin(LONG)]
    until(lambda: running.service.engine.held.num_running == 1)
    streams += [begin(LONG) for _ in range(16)]
    with pytest.raises(openai.RateLimitError) as error:
        begin(LONG)
    assert error.value.code == "queue_full"
    assert error.value.response.headers["retry-after"] == "1"
    assert "15984 prompt tokens wait and this request has 999: at most 16000 may wait" in str(
        error.value
    )
    streams.append(begin([1] * 16))
    for stream in streams:
        stream.close()


def test_a_lone_batch_of_any_size_that_may_be_taken_is_taken(serve: Callable[..., Any]) -> None:
    running = serve({"slots": 1}, plan={"max_num_seqs": 1, "queue": 40})
    answer = running.client().completions.create(model="tiny", prompt=[LONG] * 41)
    assert len(answer.choices) == 41
