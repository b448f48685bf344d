"""POST /v1/chat/completions through openai-python, on a real port."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.runtime.waiting import until

from firmtoken.runtime.server.served_model import ServedModel

Serve = Callable[..., Any]
HELLO: Any = [{"role": "user", "content": "hello"}]
TEXT = "the naïve café 🙂"


@pytest.fixture
def answering(served_model: ServedModel) -> Callable[[str], dict[str, object]]:
    """A script whose every answer is this text."""
    return lambda text: {"answer": served_model.tokenizer.encode(text)}


Answering = Callable[[str], dict[str, object]]


def added(running: Any) -> list[dict[str, Any]]:
    """What the engine was asked, without the tag."""
    return [json.loads(line.split(maxsplit=2)[2]) for line in running.notes("add")]


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_chat_is_answered_with_text_and_counts(serve: Serve, answering: Answering) -> None:
    answer = serve(answering(TEXT)).client().chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.usage.prompt_tokens == 24
    assert answer.usage.completion_tokens == len(answering(TEXT)["answer"])
    assert answer.usage.total_tokens == 24 + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 12


def test_a_stream_gives_the_same_text_as_one_body(serve: Serve, answering: Answering) -> None:
    client = serve(answering(TEXT)).client()
    chunks = list(client.chat.completions.create(model="tiny", messages=HELLO, stream=True))
    assert text_of(chunks) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    assert all("\ufffd" not in (chunk.choices[0].delta.content or "") for chunk in chunks)


def test_usage_comes_last_if_asked_for(serve: Serve, answering: Answering) -> None:
    chunks = list(
        serve(answering("ab"))
        .client()
        .chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 2
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_comes_with_every_chunk_if_asked_for(serve: Serve, answering: Answering) -> None:
    chunks = list(
        serve(answering("ab"))
        .client()
        .chat.completions.create(
            model="tiny",
            messages=HELLO,
            stream=True,
            extra_body={"stream_options": {"continuous_usage_stats": True}},
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 2)


def test_frames_are_data_lines_that_end_in_a_blank_line_and_done(
    serve: Serve, answering: Answering
) -> None:
    running = serve(answering("ab"))
    body = {"messages": HELLO, "stream": True}
    response = httpx.post(f"{running.address}/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert len(response.headers["x-request-id"]) == 24
    assert "\r" not in response.text
    *frames, end = response.text.split("\n\n")
    assert end == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    assert frames[-1] == "data: [DONE]"
    first = json.loads(frames[0].removeprefix("data: "))
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]


def test_the_budget_ends_an_answer_as_length(serve: Serve) -> None:
    client = serve().client()
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_a_stop_string_ends_text_and_engine(serve: Serve, answering: Answering) -> None:
    running = serve(answering("one two STOP three four five six seven") | {"step_s": 0.01})
    for stream in (False, True):
        answer = running.client().chat.completions.create(
            model="tiny", messages=HELLO, stop=["STOP", "never"], stream=stream
        )
        text = text_of(list(answer)) if stream else answer.choices[0].message.content
        assert text == "one two "
    until(lambda: running.notes("abort") == ["abort 1", "abort 2"])  # the last one is on its way


def test_tokens_after_a_stop_string_are_not_counted(serve: Serve, answering: Answering) -> None:
    answer = (
        serve(answering("ab|cd"))
        .client()
        .chat.completions.create(model="tiny", messages=HELLO, stop="|")
    )
    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == ("ab", 3)
    assert answer.choices[0].finish_reason == "stop"


def test_a_stop_string_is_kept_if_asked_for(serve: Serve, answering: Answering) -> None:
    answer = (
        serve(answering("ab|cd"))
        .client()
        .chat.completions.create(
            model="tiny",
            messages=HELLO,
            stop="|",
            extra_body={"include_stop_str_in_output": True},
        )
    )
    assert answer.choices[0].message.content == "ab|"


def test_a_stop_token_is_counted_and_not_shown(serve: Serve, served_model: ServedModel) -> None:
    bar = served_model.tokenizer.encode("|")[0]
    answer = (
        serve({"answer": served_model.tokenizer.encode("ab|cd")})
        .client()
        .chat.completions.create(model="tiny", messages=HELLO, extra_body={"stop_token_ids": [bar]})
    )
    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == ("ab", 3)


def test_defaults_are_the_models_and_the_request_wins(serve: Serve, answering: Answering) -> None:
    running = serve(answering("a"))
    client = running.client()
    client.chat.completions.create(model="tiny", messages=HELLO)
    client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        temperature=0,
        top_p=0.5,
        seed=-1,
        max_completion_tokens=5,
        max_tokens=9,
        extra_body={"top_k": -1, "min_p": 0.1, "ignore_eos": True, "stop_token_ids": [5]},
    )
    default, asked = added(running)
    assert default["sampling"] == {
        "temperature": 0.3,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.0,
        "seed": 7,
    }
    assert (default["max_output"], default["stop_token_ids"]) == (50, [257, 258])
    assert asked["sampling"] == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 0,
        "min_p": 0.1,
        "seed": 2**63 - 1,
    }
    assert (asked["max_output"], asked["stop_token_ids"]) == (5, [5])


def test_nulls_are_the_same_as_absent_fields(serve: Serve, answering: Answering) -> None:
    running = serve(answering("a"))
    names = (
        "model stream stream_options max_tokens max_completion_tokens temperature top_p top_k"
        " min_p seed stop stop_token_ids ignore_eos include_stop_str_in_output"
        " chat_template_kwargs n tools logprobs response_format user"
    )
    body = {"messages": HELLO} | dict.fromkeys(names.split())
    response = httpx.post(f"{running.address}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert "x-ft-ignored" not in response.headers


def test_parts_of_text_are_joined_in_every_role(
    serve: Serve, answering: Answering, served_model: ServedModel
) -> None:
    running = serve(answering("a"))
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages: Any = [
        {"role": "developer", "content": parts},
        {"role": "user", "content": parts, "name": "me"},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": parts, "tool_call_id": "call_1"},
    ]
    running.client().chat.completions.create(model="tiny", messages=messages)
    prompt = added(running)[0]["token_ids"]
    assert served_model.tokenizer.decode(prompt, skip_special_tokens=False) == (
        "<|im_start|>system\none two<|im_end|>\n<|im_start|>user\none two<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>tool\none two<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_variables_reach_the_template(
    serve: Serve, answering: Answering, served_model: ServedModel
) -> None:
    running = serve(answering("a"))
    running.client().chat.completions.create(
        model="tiny",
        messages=HELLO,
        extra_body={"chat_template_kwargs": {"shout": "hey"}},
    )
    prompt = added(running)[0]["token_ids"]
    text = served_model.tokenizer.decode(prompt, skip_special_tokens=False)
    assert text.endswith("assistant\nHEY")


def test_an_empty_thought_is_not_part_of_the_answer(serve: Serve, answering: Answering) -> None:
    answer = (
        serve(answering("<think>\n\n</think>\n\nhello"))
        .client()
        .chat.completions.create(model="tiny", messages=HELLO)
    )
    assert answer.choices[0].message.content == "hello"


def test_silence_is_filled_with_comments_if_asked_for(serve: Serve) -> None:
    running = serve({"stall": True})
    body = {"messages": HELLO, "stream": True, "sse_ping_interval": 0.05}
    with httpx.stream("POST", f"{running.address}/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        seen = [line for line, _ in zip(lines, range(6), strict=False) if line]
    assert ": keep-alive" in seen


def test_unknown_fields_are_named_in_a_header_and_warned_of_once(
    serve: Serve, answering: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve(answering("a"))
    body = {"messages": HELLO, "frobnicate": 1, "zap": None, "user": "me", "metadata": {}}
    for _ in range(2):
        response = httpx.post(f"{running.address}/v1/chat/completions", json=body)
        assert response.headers["x-ft-ignored"] == "frobnicate, zap"
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["unknown field 'frobnicate' is ignored", "unknown field 'zap' is ignored"]


def test_each_step_of_a_request_is_one_log_line(
    serve: Serve, answering: Answering, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    serve(answering("ab")).client().chat.completions.create(model="tiny", messages=HELLO)
    lines = [line for line in caplog.messages if line.startswith("chatcmpl-")]
    texts = [line.split(maxsplit=1)[1] for line in lines]
    assert texts[0] == (
        "received: 24 prompt tokens, output budget 50, 5 pages needed, 66 free, seed 7"
    )
    assert texts[1] == "admitted: 12 cached tokens, 1 pages, 0 still wait"
    assert texts[2].startswith("ended: stop, 24 prompt tokens (12 cached), 2 output tokens, ")
    assert len(texts) == 3
