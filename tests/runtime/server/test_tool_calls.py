"""Thoughts and tool calls through openai-python, streamed and whole, in every dialect."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.server.conftest import serving
from tests.runtime.server.speaking import speaking

from firmtoken.runtime.server.served_model import ServedModel

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "mode": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "description": "Stops."}},
]
CALLED = [("write", {"path": 'naïve "🙂"\n', "mode": 5}), ("stop", {})]
OPENED = {"qwen3": "<think>\n", "qwen3_5": "", "minimax_m2": ""}
CALLS = {
    "qwen3": '<tool_call>\n{"name": "write", "arguments": {"path": "naïve \\"🙂\\"\\n", "mode": 5}}\n'
    '</tool_call>\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
    "qwen3_5": '<tool_call>\n<function=write>\n<parameter=path>\nnaïve "🙂"\n\n</parameter>\n'
    "<parameter=mode>\n5\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=stop>\n</function>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">naïve "🙂"\n'
    '</parameter>\n<parameter name="mode">5</parameter>\n</invoke>\n'
    '<invoke name="stop">\n</invoke>\n</minimax:tool_call>',
}
Speak = Callable[..., Any]


@pytest.fixture(scope="module", params=sorted(CALLS))
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory, dialect: str
) -> ServedModel:
    """MiniMax's tags are special tokens here, Qwen's are not, as in its own files."""
    folder = tmp_path_factory.mktemp("speaking") / dialect
    return speaking(model_folder, folder, dialect, special_tags=dialect == "minimax_m2")


@pytest.fixture
def speak(model: ServedModel, tmp_path: Path) -> Iterator[Speak]:
    """A server whose every answer is this text."""
    stack = []

    def start(text: str, **script: Any) -> Any:
        running = serving(
            model, tmp_path / "journal", script | {"answer": model.tokenizer.encode(text)}
        )
        stack.append(running)
        return running.__enter__()

    yield start
    for running in stack:
        running.__exit__(None, None, None)


def ask(running: Any, *, stream: bool, **fields: Any) -> Any:
    """The message, its finish reason and usage; a stream's are added up as clients do."""
    options: Any = {"max_tokens": 900} | fields
    if stream:
        options["stream_options"] = {"include_usage": True}
    answer = running.client().chat.completions.create(
        model="tiny", messages=HELLO, stream=stream, **options
    )
    if not stream:
        choice = answer.choices[0]
        return choice.message.model_dump(exclude_none=True), choice.finish_reason, answer.usage
    return added_up(list(answer))


def added_up(chunks: list[Any]) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for chunk in chunks[:-1]:
        delta = chunk.choices[0].delta
        if delta.content:
            message["content"] += delta.content
        for name in ("reasoning_content", "reasoning"):
            if text := getattr(delta, name, None):
                message[name] = message.get(name, "") + text
        for part in delta.tool_calls or ():
            if part.id is not None:
                assert (part.type, part.function.arguments) == ("function", "")
                assert part.index == len(message.setdefault("tool_calls", []))
                function = {"name": part.function.name, "arguments": ""}
                message["tool_calls"].append(
                    {"id": part.id, "type": "function", "function": function}
                )
            else:
                assert part.type is None and part.function.name is None
                message["tool_calls"][part.index]["function"]["arguments"] += (
                    part.function.arguments
                )
    if not message["content"] and "tool_calls" in message:
        del message["content"]
    return message, chunks[-2].choices[0].finish_reason, chunks[-1].usage


def made(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message["tool_calls"]
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_a_thought_text_and_calls_arrive_apart(speak: Speak, dialect: str, stream: bool) -> None:
    thought = OPENED[dialect] + "so it is\n</think>\n\n"
    running = speak(thought + "I call.\n\n" + CALLS[dialect])
    message, reason, usage = ask(running, stream=stream, tools=TOOLS)
    assert message["reasoning_content"] == message["reasoning"] == "so it is"
    assert message["content"] == "I call."
    assert made(message) == CALLED
    assert reason == "tool_calls"
    ids = [call["id"] for call in message["tool_calls"]]
    assert [call_id[-2:] for call_id in ids] == ["_0", "_1"]
    assert all(call_id.startswith("call_") and len(call_id) == 31 for call_id in ids)
    # Each byte of the thought is a token here, each tag one; the tag that opens it comes before it.
    details = usage.completion_tokens_details
    assert details.reasoning_tokens == len("so it is\n") + (1 if OPENED[dialect] else 0) + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_of_calls_alone_has_no_content(speak: Speak, dialect: str, stream: bool) -> None:
    running = speak(OPENED[dialect] + "</think>\n\n" + CALLS[dialect])
    message, reason, _ = ask(running, stream=stream, tools=TOOLS)
    assert message.keys() == {"role", "tool_calls"}
    assert (made(message), reason) == (CALLED, "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=str)
def test_nothing_is_a_call_where_none_was_asked_for(
    speak: Speak, dialect: str, stream: bool, fields: dict[str, Any]
) -> None:
    running = speak(OPENED[dialect] + "</think>\n\n" + CALLS[dialect])
    message, reason, _ = ask(running, stream=stream, **fields)
    assert message == {"role": "assistant", "content": CALLS[dialect]}
    assert reason == "stop"


@pytest.mark.report(69)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_may_not_be_parallel_end_with_the_first(
    speak: Speak, dialect: str, stream: bool
) -> None:
    running = speak(OPENED[dialect] + "</think>" + CALLS[dialect], step_s=0.001)
    message, reason, _ = ask(running, stream=stream, tools=TOOLS, parallel_tool_calls=False)
    assert (made(message), reason) == (CALLED[:1], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_the_budget_cuts_cannot_be_run(
    speak: Speak, model: ServedModel, dialect: str, stream: bool
) -> None:
    head = OPENED[dialect] + "</think>" + CALLS[dialect][: CALLS[dialect].index("naï") + 1]
    running = speak(OPENED[dialect] + "</think>" + CALLS[dialect])
    budget = len(model.tokenizer.encode(head))
    message, reason, _ = ask(running, stream=stream, tools=TOOLS, max_tokens=budget)
    assert reason == "length"
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "write", "arguments": '{"path": "n'}


@pytest.mark.parametrize("stream", [False, True])
def test_the_budget_is_the_reason_also_behind_a_whole_call(
    speak: Speak, model: ServedModel, dialect: str, stream: bool
) -> None:
    answer = OPENED[dialect] + "</think>" + CALLS[dialect]
    budget = len(model.tokenizer.encode(answer[: answer.index("stop")]))
    message, reason, _ = ask(speak(answer), stream=stream, tools=TOOLS, max_tokens=budget)
    assert (made(message), reason) == (CALLED[:1], "length")


def test_the_clients_own_reader_of_streams_takes_them(speak: Speak, dialect: str) -> None:
    running = speak(OPENED[dialect] + "so\n</think>\n\nI call." + CALLS[dialect])
    with running.client().chat.completions.stream(
        model="tiny", messages=HELLO, max_tokens=900, extra_body={"tools": TOOLS}
    ) as stream:
        message = stream.get_final_completion().choices[0].message.model_dump()
    assert (message["content"], message["reasoning_content"]) == ("I call.", "so")
    assert made(message) == CALLED


def test_a_request_with_tools_and_history_reaches_the_template(
    speak: Speak, model: ServedModel, dialect: str
) -> None:
    running = speak("x")
    messages: Any = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "reasoning": "I must",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for name, arguments in (("write", '{"path": "a", "mode": 5}'), ("stop", ""))
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "done"}]},
    ]
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 1}
    post(running, body)
    (added,) = running.notes("add")
    ids = json.loads(added.split(maxsplit=2)[2])["token_ids"]
    prompt = model.tokenizer.decode(ids, skip_special_tokens=False)
    assert '"name": "stop", "description": "Stops."' in prompt
    assert "<think>\nI must\n</think>" in prompt
    assert "done" in prompt
    assert {
        "qwen3": '{"name": "write", "arguments": {"path": "a", "mode": 5}}',
        "qwen3_5": "<parameter=mode>\n5\n</parameter>",
        "minimax_m2": '<parameter name="mode">5</parameter>',
    }[dialect] in prompt
    count = httpx.post(f"{running.address}/tokenize", json=body).json()["count"]
    assert count == len(ids)


@pytest.mark.report(72)
@pytest.mark.report(73)
@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}},
    ],
    ids=str,
)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_thinking_is_switched_off_or_the_request_is_refused(
    speak: Speak, dialect: str, fields: dict[str, Any], tools: Any
) -> None:
    running = speak("hello")
    response = post(running, {"messages": HELLO, "tools": tools} | fields)
    if dialect == "minimax_m2":
        assert response.status_code == 400
        assert "cannot answer without thinking" in response.json()["error"]["message"]
        return
    message = response.json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "hello"}


def test_silence_is_filled_while_a_value_is_held_back(speak: Speak, dialect: str) -> None:
    long = CALLS[dialect].replace("5", " " * 300 + "5")
    running = speak(OPENED[dialect] + "</think>" + long, step_s=0.002)
    body = {"messages": HELLO, "tools": TOOLS, "stream": True, "sse_ping_interval": 0.1}
    text = post(running, body | {"max_tokens": 900}).text
    # Qwen3's arguments are JSON already and are shown as they come.
    assert text.count(": keep-alive") >= (0 if dialect == "qwen3" else 2)


def post(running: Any, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{running.address}/v1/chat/completions", json=body, timeout=60)
