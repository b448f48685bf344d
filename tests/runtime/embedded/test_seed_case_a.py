"""The report that started the project: context and pool 8,209; 8,011 tokens run, 8,760 are refused at once."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest


@pytest.fixture(scope="module")
def server(serve: Callable[..., Any]) -> Iterator[httpx.Client]:
    overrides = (
        "serving.context=8209",
        "serving.pool=8209",
        "serving.requests=1",
        "hardware.cpu.memory=128MiB",
    )
    with (
        serve("tiny-cpu", *overrides) as address,
        httpx.Client(base_url=address, timeout=120) as http,
    ):
        yield http


def complete(server: httpx.Client, tokens: int, *, stream: bool = False) -> httpx.Response:
    body = {"prompt": [300 + n % 3000 for n in range(tokens)], "max_tokens": 4, "temperature": 0}
    return server.post("/v1/completions", json={**body, "stream": stream, "ignore_eos": True})


@pytest.mark.report(11, 12)
def test_the_advertised_context_is_the_real_one(server: httpx.Client) -> None:
    [model] = server.get("/v1/models").json()["data"]
    assert model["max_model_len"] == model["context_length"] == 8209
    assert server.get("/health").json()["effective_context"] == 8209


@pytest.mark.report(1)
def test_a_prompt_of_8011_tokens_runs(server: httpx.Client) -> None:
    answer = complete(server, 8011)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.report(1, 14, 16)
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_of_8760_tokens_is_refused_at_once_and_the_next_is_served(
    stream: bool, server: httpx.Client
) -> None:
    start = time.perf_counter()
    answer = complete(server, 8760, stream=stream)
    assert time.perf_counter() - start < 5
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    for number in ("8209", "8760", "129 pages", "137 pages"):
        assert number in error["message"].replace(",", "")
    assert complete(server, 20).status_code == 200


@pytest.mark.report(1, 2)
def test_the_last_prompt_that_fits_runs_for_one_token(server: httpx.Client) -> None:
    answer = complete(server, 8208)
    assert answer.status_code == 200
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert answer.json()["usage"]["completion_tokens"] == 1
    assert complete(server, 8209).status_code == 400
