"""A client that leaves is aborted exactly once, whatever it waited for."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.runtime.waiting import until

Serve = Callable[..., Any]
ENDLESS = {"prompt": "abc", "max_tokens": 900}


def settled(running: Any) -> bool:
    """The engine has ended everything and the server knows."""
    engine = running.service.engine
    return engine.held.num_running + engine.held.num_waiting == 0


def leave_unanswered(running: Any, body: dict[str, object]) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{running.address}/v1/completions", json=body, timeout=0.3)


@pytest.mark.report(41)
def test_leaving_a_stream_between_tokens_aborts_once(serve: Serve) -> None:
    running = serve({"step_s": 0.01})
    url = f"{running.address}/v1/completions"
    with httpx.stream("POST", url, json=ENDLESS | {"stream": True}) as response:
        lines = response.iter_lines()  # kept: httpx closes the stream when this is collected
        next(lines)
    until(lambda: settled(running))
    assert running.notes("abort") == ["abort 1"]
    assert running.notes("done") == ["done 1 abort"]


def test_leaving_a_stream_before_the_first_token_aborts_once(serve: Serve) -> None:
    running = serve({"step_s": 5})
    url = f"{running.address}/v1/completions"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(url, json=ENDLESS | {"stream": True}, timeout=0.3)
    until(lambda: settled(running))
    assert running.notes("abort") == ["abort 1"]


@pytest.mark.report(41)
def test_leaving_without_a_stream_aborts_once(serve: Serve) -> None:
    running = serve({"step_s": 0.01})
    leave_unanswered(running, ENDLESS)
    until(lambda: settled(running))
    assert running.notes("abort") == ["abort 1"]


@pytest.mark.report(6)
def test_leaving_the_queue_aborts_once_and_frees_it(serve: Serve) -> None:
    running = serve({"step_s": 0.01, "slots": 1})
    url = f"{running.address}/v1/completions"
    with httpx.stream("POST", url, json=ENDLESS | {"stream": True}) as response:
        lines = response.iter_lines()  # kept: httpx closes the stream when this is collected
        next(lines)
        leave_unanswered(running, ENDLESS)
        until(lambda: running.notes("abort") == ["abort 2"])
        assert running.notes("done") == ["done 2 abort"]
    until(lambda: settled(running))
    assert running.notes("abort") == ["abort 2", "abort 1"]
    answer = httpx.post(url, json={"prompt": "x", "max_tokens": 1})
    assert answer.json()["choices"][0]["text"] == "x"


def test_leaving_a_batch_aborts_each_request_once(serve: Serve) -> None:
    running = serve({"step_s": 0.01})
    leave_unanswered(running, ENDLESS | {"prompt": ["a", "b", "c"]})
    until(lambda: settled(running))
    assert sorted(running.notes("abort")) == ["abort 1", "abort 2", "abort 3"]


def test_a_slow_reader_that_leaves_is_aborted(serve: Serve) -> None:
    """Its stream is blocked in `send` then, not in the generator."""
    running = serve(plan={"effective_context": 2**30}, script={})
    url = f"{running.address}/v1/completions"
    body = {"prompt": "abc", "max_tokens": 2**29, "stream": True}
    with httpx.stream("POST", url, json=body) as response:
        lines = response.iter_lines()  # kept: httpx closes the stream when this is collected
        next(lines)
        time.sleep(0.5)
    until(lambda: settled(running))
    assert running.notes("abort") == ["abort 1"]


def test_an_answer_that_ended_is_not_aborted(serve: Serve) -> None:
    running = serve()
    httpx.post(f"{running.address}/v1/completions", json={"prompt": "abc", "max_tokens": 5})
    url = f"{running.address}/v1/completions"
    body = {"prompt": "abc", "max_tokens": 5, "stream": True}
    httpx.post(url, json=body)
    assert running.notes("abort") == []


def test_how_a_client_left_is_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    running = serve({"step_s": 0.01})
    leave_unanswered(running, ENDLESS)
    until(lambda: any(" ended: client closed, " in line for line in caplog.messages))
