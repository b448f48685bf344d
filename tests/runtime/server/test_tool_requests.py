"""Tools and past calls in a request: what is taken, what is refused, with the field's name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.server.conftest import serving
from tests.runtime.server.speaking import speaking

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOL: Any = {"type": "function", "function": {"name": "write"}}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def running(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("speaking")
    model = speaking(model_folder, folder / "model", "qwen3_5", special_tags=False)
    with serving(model, folder / "journal", {}) as server:
        yield server


def post(running: Any, path: str = CHAT, **body: Any) -> httpx.Response:
    body = {"messages": HELLO, "max_tokens": 1} | body
    return httpx.post(running.address + path, json=body)


def called(**function: Any) -> Any:
    return [*HELLO, {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}]


INVALID, UNSUPPORTED = "invalid_value", "unsupported_parameter"
PLACE = "messages[1].tool_calls[0].function"


@pytest.mark.parametrize(
    ("body", "code", "param", "message"),
    [
        ({"tools": {}}, INVALID, "tools", "`tools`: expected `array | null`, got `object`"),
        ({"tools": ["x"]}, INVALID, "tools[0]", "`tools[0]`: expected `object`, got `str`"),
        (
            {"tools": [{}]},
            INVALID,
            "tools[0].function",
            "`tools[0].function`: expected an object with `name` and `parameters`",
        ),
        (
            {"tools": [TOOL, {"type": "web_search"}]},
            UNSUPPORTED,
            "tools[1].type",
            "`tools[1].type`: `web_search` is not supported, only `function` is",
        ),
        *(
            (
                {"tools": [{"function": {"name": name}}]},
                INVALID,
                "tools[0].function.name",
                "`tools[0].function.name`: expected 1 to 256 characters without white space, `<`,"
                " `>` and quotes",
            )
            for name in ("", None, 5, "a b", "a>", 'a"', "a\n", "x" * 257)
        ),
        (
            {"tools": [{"function": {"name": "a", "parameters": []}}]},
            INVALID,
            "tools[0].function.parameters",
            "`tools[0].function.parameters`: expected a JSON schema, an object",
        ),
        (
            {"tools": [TOOL, TOOL]},
            INVALID,
            "tools[1].function.name",
            "`tools[1].function.name`: `write` is there twice",
        ),
        (
            {"tools": [{"function": {"name": "a", "strict": True}}]},
            UNSUPPORTED,
            "tools[0].function.strict",
            "`tools[0].function.strict`: nothing here forces arguments to fit their schema, leave"
            " it out",
        ),
        *(
            (
                {"tools": [TOOL], "tool_choice": choice},
                UNSUPPORTED,
                "tool_choice",
                f"`tool_choice`: `{named}` cannot be enforced here, only `auto` and `none` are"
                " served",
            )
            for choice, named in (("required", "required"), (TOOL, "one named tool"))
        ),
        (
            {"reasoning_effort": "high"},
            UNSUPPORTED,
            "reasoning_effort",
            "`reasoning_effort`: `high` cannot be done here: `none` asks for no thought, without"
            " the field the model thinks as its template has it",
        ),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            UNSUPPORTED,
            "reasoning_effort",
            "`reasoning_effort`: `none`, but `chat_template_kwargs.enable_thinking` asks for"
            " thinking",
        ),
        (
            {"messages": called()},
            INVALID,
            f"{PLACE}.name",
            f"`{PLACE}.name`: required, and missing",
        ),
        *(
            (
                {"messages": called(name="write", arguments=arguments)},
                INVALID,
                f"{PLACE}.arguments",
                f"`{PLACE}.arguments`: expected the JSON text of an object",
            )
            for arguments in ("{", "[1]", "5", '{"a": 1} x')
        ),
        (
            {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "a"}}]}]},
            INVALID,
            "messages[0].tool_calls",
            "`messages[0].tool_calls`: only an `assistant` calls tools",
        ),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_what_cannot_be_is_refused_with_the_fields_name(
    running: Any, path: str, body: dict[str, Any], code: str, param: str, message: str
) -> None:
    response = post(running, path, **body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["message"], error["code"], error["param"]) == (message, code, param)


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [], "tool_choice": None, "parallel_tool_calls": True},
        {"tool_choice": "auto"},
        {"tools": [{"function": {"name": "a.b-c_d:1", "strict": False, "parameters": None}}]},
        {"messages": called(name="write")},
        {"messages": called(name="write", arguments="")},
        {"messages": called(name="write", arguments={"path": "a"})},
        {"messages": called(name="write", arguments='{"path": "\\ud83d\\ude42"}')},
    ],
)
def test_what_clients_send_is_taken(running: Any, body: dict[str, Any]) -> None:
    response = post(running, **body)
    assert response.status_code == 200, response.text


def test_tools_are_refused_where_the_template_has_no_place_for_them(shared: Any) -> None:
    for body, param in (
        ({"tools": [TOOL]}, "tools"),
        ({"messages": called(name="write")}, "messages[1].tool_calls"),
    ):
        response = post(shared, **body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["code"], error["param"]) == (UNSUPPORTED, param)
        assert "this model's chat template has no place for" in error["message"]
    assert post(shared, tools=[TOOL], tool_choice="none").status_code == 200
