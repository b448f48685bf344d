"""Routes about the server itself: models, health, plan, tokenize, keys, loading."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from firmtoken.runtime.server.key_file import KeysFault
from firmtoken.runtime.server.keys import load_keys

Serve = Callable[..., Any]


@pytest.mark.report(11)
def test_models_say_the_effective_context_under_both_names(shared: Any) -> None:
    listed = httpx.get(f"{shared.address}/v1/models").json()
    assert [(card["id"], card["max_model_len"]) for card in listed["data"]] == [("tiny", 1000)]
    card = httpx.get(f"{shared.address}/v1/models/tiny").json()
    assert card == listed["data"][0]
    assert card["context_length"] == 1000
    assert card["created"] == 1_800_000_000  # the wall clock, not the one for durations
    assert [model.id for model in shared.client().models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError) as error:
        shared.client().models.retrieve("org/other")
    assert error.value.code == "model_not_found"
    assert "`org/other`" in error.value.message


@pytest.mark.report(12)
def test_health_is_200_with_the_state_and_the_effective_context(shared: Any) -> None:
    response = httpx.get(f"{shared.address}/health")
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["state"]) == ("ok", "ready")
    assert (body["effective_context"], body["model"], body["cause"]) == (1000, "tiny", None)


def test_the_plan_is_served_byte_for_byte(shared: Any) -> None:
    response = httpx.get(f"{shared.address}/v1/plan")
    assert response.content == b'{"schema":"test"}'
    assert response.headers["content-type"] == "application/json"


@pytest.mark.report(46)
def test_while_loading_health_and_requests_are_503_and_models_answer(serve: Serve) -> None:
    running = serve({"load_s": 30}, wait=False)
    assert httpx.get(f"{running.address}/v1/models").status_code == 200
    health = httpx.get(f"{running.address}/health")
    assert health.status_code == 503
    assert health.json()["state"] == "loading"
    with pytest.raises(openai.InternalServerError) as error:
        running.client().completions.create(model="tiny", prompt="x")
    assert (error.value.status_code, error.value.code) == (503, "model_loading")
    assert error.value.response.headers["retry-after"] == "2"
    counted = httpx.post(f"{running.address}/tokenize", json={"prompt": "abc"})
    assert counted.json()["count"] == 3


@pytest.mark.report(15)
def test_a_text_is_tokenized_and_back(shared: Any) -> None:
    body = {"model": "tiny", "prompt": "é the <|im_end|>", "return_token_strs": True}
    answer = httpx.post(f"{shared.address}/tokenize", json=body).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1000
    assert answer["token_strs"][-1] == "<|im_end|>"
    back = httpx.post(f"{shared.address}/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "é the <|im_end|>"}


@pytest.mark.report(15)
def test_a_chat_is_tokenized_as_it_would_be_served(shared: Any) -> None:
    messages = [{"role": "user", "content": "hello"}]
    url = f"{shared.address}/tokenize"
    answer = httpx.post(url, json={"messages": messages}).json()
    assert (answer["count"], answer["token_strs"]) == (24, None)
    bare = httpx.post(url, json={"messages": messages, "add_generation_prompt": False}).json()
    assert bare["count"] == 13
    long = httpx.post(url, json={"messages": [{"role": "user", "content": "x" * 5000}]})
    assert long.json()["count"] == 5019


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user"}]}])
def test_tokenize_takes_a_text_or_a_chat(shared: Any, body: dict[str, object]) -> None:
    response = httpx.post(f"{shared.address}/tokenize", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# who may\n\nfirst-key\nsecond-key  \n")
    return path


def test_keys_are_taken_as_bearer_and_as_x_api_key(serve: Serve, key_file: Path) -> None:
    running = serve(key_hashes=load_keys(key_file))
    url = f"{running.address}/v1/models"
    for headers in (
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"x-api-key": "second-key"},
    ):
        assert httpx.get(url, headers=headers).status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "# who may"}):
        refused = httpx.get(url, headers=headers)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.json()["error"]["type"] == "authentication_error"
        assert "x-request-id" in refused.headers
    assert httpx.get(f"{running.address}/health").status_code == 200
    assert httpx.get(f"{running.address}/v1/plan").status_code == 401


def test_a_file_without_keys_does_not_let_everyone_in(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# none yet\n\n")
    with pytest.raises(KeysFault, match="holds no key"):
        load_keys(path)
    with pytest.raises(KeysFault, match="cannot be read"):
        load_keys(tmp_path / "nowhere")


def test_a_key_is_compared_as_utf_8(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    key = "schlüssel\x85à"  # the last byte of its UTF-8 would be a blank in Latin-1
    path.write_text(f"\ufeff{key}\n", encoding="utf-8")
    running = serve(key_hashes=load_keys(path))
    url = f"{running.address}/v1/models"
    sent = key.encode()
    assert httpx.get(url, headers={b"authorization": b"Bearer " + sent}).status_code == 200
    assert httpx.get(url, headers={b"x-api-key": sent}).status_code == 200
    assert httpx.get(url, headers={b"x-api-key": key.encode("latin-1")}).status_code == 401
