"""When the engine is gone, everyone hears it at once, with the first cause."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tests.runtime.waiting import until

Serve = Callable[..., Any]
HELLO: Any = [{"role": "user", "content": "hello"}]


def stream_to_its_error(running: Any) -> openai.APIError:
    client = running.client()
    with pytest.raises(openai.APIError) as error:
        list(
            client.chat.completions.create(
                model="tiny", messages=HELLO, stream=True, extra_body={"ignore_eos": True}
            )
        )
    return error.value


def test_each_of_twenty_streams_gets_an_error_event(serve: Serve) -> None:
    running = serve({"step_s": 0.02, "die_after": 20, "slots": 4})
    start = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        errors = list(pool.map(lambda _: stream_to_its_error(running), range(20)))
    assert time.monotonic() - start < 5
    for error in errors:
        assert error.code == "engine_dead"
        assert error.type == "server_error"
        assert "was killed by SIGKILL: the fake engine falls over" in error.message


def test_the_error_event_is_followed_by_the_end_mark(serve: Serve) -> None:
    running = serve({"die_after": 3})
    body = {"messages": HELLO, "stream": True}
    text = httpx.post(f"{running.address}/v1/chat/completions", json=body).text
    *_, error, done, end = text.split("\n\n")
    assert error.startswith('data: {"error":{"message":"the engine is dead: ')
    assert (done, end) == ("data: [DONE]", "")


def test_a_request_without_a_stream_gets_503_and_is_not_retried(serve: Serve) -> None:
    running = serve({"step_s": 0.01, "die_after": 3})
    with pytest.raises(openai.InternalServerError) as error:
        running.client(max_retries=2).completions.create(model="tiny", prompt="abc")
    assert error.value.status_code == 503
    assert error.value.code == "engine_dead"
    assert error.value.response.headers["x-should-retry"] == "false"


def test_later_requests_and_health_repeat_the_first_cause(serve: Serve) -> None:
    running = serve({"fault_after": 0})
    for _ in range(2):
        with pytest.raises(openai.InternalServerError) as error:
            running.client().completions.create(model="tiny", prompt="abc")
        assert error.value.body["message"] == "the engine is dead: the device is lost"
    health = httpx.get(f"{running.address}/health")
    assert health.status_code == 503
    assert (health.json()["state"], health.json()["cause"]) == ("dead", "the device is lost")
    assert running.service.engine.death.exit_code == 3
    assert running.service.engine.death.hint == "check it"


def test_death_is_heard_within_a_second(serve: Serve) -> None:
    running = serve({"stall": True})
    with httpx.stream(
        "POST",
        f"{running.address}/v1/completions",
        json={"prompt": "x", "stream": True},
    ) as response:
        engine = running.service.engine
        running.loop.call_soon_threadsafe(engine._life.process.kill)
        start = time.monotonic()
        text = response.read().decode()
    assert time.monotonic() - start < 1
    assert "engine_dead" in text
    assert engine.death.exit_code == 4


def test_an_engine_that_cannot_load_leaves_its_reason(serve: Serve) -> None:
    running = serve({"fail_load": True}, wait=False)
    until(lambda: running.service.engine.state == "dead")
    with pytest.raises(openai.InternalServerError) as error:
        running.client().completions.create(model="tiny", prompt="abc")
    assert error.value.body["message"] == "the engine is dead: weights are broken"


@pytest.mark.parametrize(("code", "logged"), [(4, True), (3, False)])
def test_the_stack_of_a_fault_goes_to_the_log_and_only_if_it_is_ours_to_mend(
    serve: Serve, caplog: pytest.LogCaptureFixture, code: int, logged: bool
) -> None:
    running = serve({"fault_after": 0, "fault_code": code})
    response = httpx.post(f"{running.address}/v1/completions", json={"prompt": "x"})
    assert "a stack" not in response.text
    stacks = [line for line in caplog.messages if "a stack" in line]
    assert stacks == (["the engine's stack:\na stack"] if logged else [])
    assert not any("the device is lost" in line for line in caplog.messages if line not in stacks)
