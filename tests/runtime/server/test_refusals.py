"""What is refused: with the field's name, before anything is queued or streamed."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import httpx
import openai
import pytest
from tests.runtime.waiting import until

from firmtoken.runtime.dialects.chatml import ChatTemplate
from firmtoken.runtime.server.answer import Answer
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.schema.diagnostic import LONGEST_LITERAL

Serve = Callable[..., Any]
HELLO: Any = [{"role": "user", "content": "hello"}]
DEEP = b"[" * 5_000 + b"]" * 5_000
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture
def running(shared: Any) -> Any:
    return shared


def post(running: Any, path: str, content: bytes | dict[str, object]) -> httpx.Response:
    if isinstance(content, dict):
        content = json.dumps(content).encode()
    return httpx.post(running.address + path, content=content)


@pytest.mark.report(16)
@pytest.mark.parametrize("stream", [False, True])
def test_an_over_long_prompt_is_refused_before_the_stream_opens(running: Any, stream: bool) -> None:
    client, before = running.client(), running.notes("add")
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * 2000}], stream=stream
        )
    assert error.value.code == "context_length_exceeded"
    assert error.value.param == "messages"
    assert error.value.type == "invalid_request_error"
    assert "1000 tokens (63 pages of 16), but the prompt has 2019 tokens" in error.value.message
    assert len(error.value.request_id) == 24
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", prompt=[1] * 1000, stream=stream)
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")
    assert running.notes("add") == before
    answer = client.completions.create(model="tiny", prompt=[1] * 999, stream=stream)
    text = list(answer)[-1] if stream else answer
    assert text.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        (b"", "invalid_json", None, "the body is empty: send a JSON object"),
        (b"{nope", "invalid_json", None, "the body is not JSON: "),
        (b"[1]", "invalid_json", None, "expected a JSON object: "),
        (
            b'{"messages": [{"role": "user", "content": "\xff"}]}',
            "invalid_json",
            "messages[0].content",
            "`messages[0].content`: the text is not Unicode",
        ),
        *(
            (
                b'{"messages": [{"role": "user", "content": "' + half + b'"}]}',
                "invalid_json",
                "messages[0].content",
                "`messages[0].content`: the text is not Unicode",
            )
            for half in (rb"\ud800", rb"x\udc00", rb"\ud800\n and more text")
        ),
        *(
            (
                b'{"messages": [{"role": "user", "content": "x"' + inner + b"}",
                "invalid_json",
                None,
                "the body is not JSON we read: nested too deeply",
            )
            for inner in (
                b'}], "tools": [{"a": ' + DEEP + b"}]",
                b'}], "chat_template_kwargs": {"a": ' + DEEP + b"}",
                b', "tool_calls": [{"a": ' + DEEP + b"}]}]",
                b"}, " + b"[" * 50_000 + b"]" * 50_000 + b"]",
            )
        ),
        ({}, "invalid_value", "messages", "`messages`: required, and missing"),
        ({"messages": None}, "invalid_value", "messages", "`messages`: expected `array`"),
        ({"messages": []}, "invalid_value", "messages", "`messages`: expected `array` of length"),
        ({"messages": ["hi"]}, "invalid_value", "messages[0]", "`messages[0]`: expected `object`"),
        (
            {"messages": [{"content": "x"}]},
            "invalid_value",
            "messages[0].role",
            "`messages[0].role`: required, and missing",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "invalid_value",
            "messages[0].content",
            "`messages[0].content`: expected `str | array | null`, got `int`",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "invalid_value",
            "messages[0].content[0].text",
            "`messages[0].content[0].text`: required, and missing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "unsupported_parameter",
            "messages[0].content[0].type",
            "`messages[0].content[0].type`: `image_url` is not supported",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "A" * 100_000}]}]},
            "unsupported_parameter",
            "messages[0].content[0].type",
            f"`messages[0].content[0].type`: `{'A' * (LONGEST_LITERAL - 3)}...` is not supported",
        ),
        (
            {"messages": HELLO, "chat_template_kwargs": {"tools": []}},
            "unsupported_parameter",
            "chat_template_kwargs.tools",
            "`chat_template_kwargs.tools` cannot be set there",
        ),
        (
            {"messages": [*HELLO, {"role": "system", "content": "late"}]},
            "invalid_messages",
            "messages",
            "System message must be at the beginning.",
        ),
        (
            {"messages": HELLO, "chat_template_kwargs": {"messages": []}},
            "unsupported_parameter",
            "chat_template_kwargs.messages",
            "`chat_template_kwargs.messages` cannot be set there",
        ),
    ],
)
def test_a_bad_chat_is_refused_with_the_fields_name(
    running: Any, body: Any, code: str, param: str | None, message: str
) -> None:
    response = post(running, CHAT, body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert error["message"].startswith(message)
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", -1),
        ("temperature", 100.5),
        ("temperature", 1e300),
        ("top_p", -0.1),
        ("top_p", 1.5),
        ("top_k", 1.5),
        ("top_k", -2),
        ("top_k", 2**40),
        ("min_p", -0.1),
        ("min_p", 2),
        ("max_tokens", "10"),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_completion_tokens", -5),
        ("seed", "x"),
        ("seed", 2**64),
        ("stream", "yes"),
        ("stream_options", True),
        ("stop", 5),
        ("stop", ""),
        ("stop", [""]),
        ("stop", ["a"] * 17),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "5"),
        ("ignore_eos", 1),
        ("model", 5),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_value_of_the_wrong_kind_is_refused_with_the_fields_name(
    running: Any, path: str, field: str, value: object
) -> None:
    response = post(running, path, {"messages": HELLO, "prompt": "x", field: value})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"].split("[")[0] == field
    assert error["message"].startswith(f"`{field}")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0),
        ("temperature", 1e-300),
        ("temperature", 100),
        ("top_p", 0),
        ("top_p", 1),
        ("top_k", -1),
        ("top_k", 0),
        ("min_p", 0),
        ("min_p", 1),
    ],
)
def test_a_value_at_its_bound_is_taken(running: Any, field: str, value: float) -> None:
    assert post(running, TEXT, {"prompt": "x", "max_tokens": 1, field: value}).status_code == 200


@pytest.mark.parametrize(
    ("field", "value", "neutral"),
    [
        ("n", 2, 1),
        ("best_of", 2, 1),
        ("tools", [{"type": "function", "function": {"name": "f"}}], []),
        ("tool_choice", "required", "auto"),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("presence_penalty", 0.5, 0),
        ("frequency_penalty", -0.5, 0.0),
        ("repetition_penalty", 1.1, 1.0),
        ("logit_bias", {"5": 1}, {}),
        ("logprobs", True, False),
        ("logprobs", 0, None),
        ("top_logprobs", 3, 0),
        ("echo", True, False),
        ("suffix", "x", ""),
        ("min_tokens", 5, 0),
        ("reasoning_effort", "high", None),
        ("guided_json", {"type": "object"}, None),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_cannot_be_done_is_refused_by_name_unless_it_changes_nothing(
    running: Any, path: str, field: str, value: object, neutral: object
) -> None:
    body = {"messages": HELLO, "prompt": "x", "max_tokens": 1}
    response = post(running, path, body | {field: value})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("unsupported_parameter", field)
    assert post(running, path, body | {field: neutral}).status_code == 200


def test_another_models_name_is_not_found(running: Any) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        running.client().chat.completions.create(model="gpt-4", messages=HELLO)
    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert "serves `tiny`" in error.value.message


@pytest.mark.parametrize("base", ["", "/v1/v1"])
def test_a_base_url_without_v1_or_with_two_is_told_the_right_one(running: Any, base: str) -> None:
    missing = httpx.post(f"{running.address}{base}/chat/completions", json={})
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == (
        f"No such route: POST {base}/chat/completions; `/v1/chat/completions` is there: "
        "the client's base URL must end in one `/v1`"
    )


def test_an_unknown_route_and_a_wrong_method_have_the_same_shape(running: Any) -> None:
    missing = httpx.get(f"{running.address}/v1/embeddings")
    assert missing.status_code == 404
    assert missing.json()["error"]["message"] == "No such route: GET /v1/embeddings"
    assert len(missing.headers["x-request-id"]) == 24
    wrong = httpx.get(running.address + CHAT)
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "not_allowed"
    assert "POST" in wrong.headers["allow"]


def test_a_body_beyond_the_limit_is_413(running: Any) -> None:
    response = post(running, TEXT, b" " * (64 * 2**20 + 1))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert post(running, TEXT, b" " * 2**20 + b'{"prompt": "x"}').status_code == 200


def test_a_full_queue_is_429_with_retry_after(serve: Serve) -> None:
    running = serve({"stall": True, "slots": 1}, plan={"max_num_seqs": 1, "queue": 1})
    client = running.client()
    streams = [client.completions.create(model="tiny", prompt="x", stream=True) for _ in range(2)]
    with pytest.raises(openai.RateLimitError) as error:
        client.completions.create(model="tiny", prompt="x")
    assert error.value.code == "queue_full"
    assert error.value.type == "rate_limit_error"
    assert error.value.response.headers["retry-after"] == "1"
    for stream in streams:
        stream.close()


def test_a_batch_is_admitted_whole_or_not_at_all(serve: Serve) -> None:
    running = serve({"stall": True}, plan={"max_num_seqs": 1, "queue": 1})
    client = running.client()
    stream = client.completions.create(model="tiny", prompt="x", stream=True)
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="tiny", prompt=["a", "b"])
    assert len(running.notes("add")) == 1
    stream.close()


def test_a_batch_that_could_never_be_taken_is_400_not_429(serve: Serve) -> None:
    running = serve({"stall": True}, plan={"max_num_seqs": 2, "queue": 3})
    with pytest.raises(openai.BadRequestError) as error:
        running.client().completions.create(model="tiny", prompt=["a"] * 6)
    assert (error.value.param, error.value.code) == ("prompt", "invalid_value")
    assert "6 prompts in one request, at most 5 can be taken together" in error.value.message
    assert running.notes("add") == []


def test_a_template_cannot_take_the_server_down(running: Any) -> None:
    response = post(
        running, CHAT, {"messages": HELLO, "chat_template_kwargs": {"shout": {"deep": [1]}}}
    )
    assert response.status_code == 200


def test_a_refusal_is_one_log_line_without_a_strangers_line_breaks(
    running: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    post(running, CHAT, {"messages": HELLO, "model": "a\nforged line"})
    refused = [line for line in caplog.messages if " refused: " in line]
    assert len(refused) == 1
    assert refused[0].endswith(
        "refused: 404 model_not_found: The model `a\\nforged line` does not exist here,"
        " this server serves `tiny`"
    )


def test_our_own_bug_is_500_with_a_stack_in_the_log_only(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve()
    running.service.begin = None
    response = post(running, TEXT, {"prompt": "x"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert response.headers["x-should-retry"] == "false"
    assert "NoneType" not in response.text
    assert response.headers["x-request-id"] in response.text
    assert any(record.exc_info for record in caplog.records)


def test_our_own_bug_in_a_stream_is_an_error_event(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve({"step_s": 0.01})
    monkeypatch.setattr(Answer, "token", lambda self, token_id: 1 / 0)
    text = post(running, TEXT, {"prompt": "x", "stream": True}).text
    assert text.startswith('data: {"error":{"message":"the server failed, its log has more"')
    assert text.endswith("data: [DONE]\n\n")
    until(lambda: running.notes("abort") == ["abort 1"])


@pytest.mark.report(2)
@pytest.mark.parametrize("asked", [2**31 + 1, 10**30])
def test_a_budget_beyond_every_context_is_lowered(running: Any, asked: int) -> None:
    response = post(running, TEXT, {"prompt": [1] * 990, "max_tokens": asked})
    assert response.json()["usage"]["completion_tokens"] == 10


def test_a_prompt_without_tokens_is_refused(serve: Serve, served_model: ServedModel) -> None:
    silent = ChatTemplate("{{ says }}", special_tokens={}, now=datetime.now)
    running = serve(model=replace(served_model, template=silent))
    for path, body, param in (
        (CHAT, {"messages": HELLO}, "messages"),
        ("/tokenize", {"messages": HELLO}, "messages"),
        (TEXT, {"prompt": ""}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": ["x", ""]}, "prompt"),
        (TEXT, {"prompt": [[1], []]}, "prompt"),
    ):
        response = post(running, path, dict(body))
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert running.notes("add") == []
    body = {"messages": HELLO, "chat_template_kwargs": {"says": "x"}, "max_tokens": 1}
    assert post(running, CHAT, body).status_code == 200
