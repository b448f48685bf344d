"""A tokenizer or template that fails ends its own request with one sentence, and nobody else's."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.runtime.waiting import until

from firmtoken.runtime.server import prompt
from firmtoken.runtime.server.detokenizer import Detokenizer
from firmtoken.runtime.server.tokenizer import Tokenizer

Serve = Callable[..., Any]
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
COMPLETION = {"prompt": "hello", "max_tokens": 3}


def post(running: Any, route: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{running.address}/v1/{route}", json=body, timeout=20)


@pytest.mark.parametrize(
    ("route", "body"), [("chat/completions", CHAT), ("completions", COMPLETION)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_tokenizer_that_raises_is_a_500_before_the_stream_opens(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, route: str, body: dict[str, Any], stream: bool
) -> None:
    running = serve({})

    def fail(*_: object, **__: object) -> list[int]:
        raise RuntimeError("a broken merge")

    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "encode", fail)
        refused = post(running, route, body | {"stream": stream})
    assert refused.status_code == 500
    assert refused.json()["error"]["code"] == "internal_error"
    assert "a broken merge" not in refused.text  # that is for the log
    assert post(running, route, body).status_code == 200
    assert running.notes("add")[0].startswith("add 1 ")  # the failed one never reached the engine


@pytest.mark.parametrize("stream", [False, True])
def test_a_detokenizer_that_raises_ends_its_answer_and_frees_its_place(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    running = serve({"step_s": 0.01, "slots": 1})
    original = Detokenizer.feed
    (bad,) = running.service.model.tokenizer.encode("!")

    def fail(self: Detokenizer, token_id: int) -> str:
        if token_id == bad:
            raise RuntimeError("half a character")
        return original(self, token_id)

    monkeypatch.setattr(Detokenizer, "feed", fail)
    endless = {"prompt": "ab!", "max_tokens": 900, "ignore_eos": True, "stream": stream}
    failed = post(running, "completions", endless)
    assert failed.status_code == (200 if stream else 500)
    assert "internal_error" in failed.text and '"finish_reason":"length"' not in failed.text
    held = running.service.engine.held
    until(lambda: held.num_running + held.num_waiting == 0)
    assert len(running.notes("abort")) == 1
    assert post(running, "completions", COMPLETION).status_code == 200


def test_a_template_that_does_not_end_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve({})
    monkeypatch.setattr(prompt, "TEXT_S", 0.2)
    original = Tokenizer.encode

    def slow(self: Tokenizer, text: str) -> list[int]:
        if "slow" in text:
            time.sleep(1)
        return original(self, text)

    monkeypatch.setattr(Tokenizer, "encode", slow)
    with ThreadPoolExecutor(2) as pool:
        body = {"messages": [{"role": "user", "content": "slow"}]}
        late = pool.submit(post, running, "chat/completions", body)
        quick = pool.submit(post, running, "chat/completions", CHAT)
        assert quick.result().status_code == 200
        answer = late.result()
    assert answer.status_code == 500
    assert "took longer than 0.2 s" in answer.json()["error"]["message"]
