"""The families' chat templates: rendered as transformers renders them, and what a dialect expects of a prompt."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from firmtoken.runtime.dialects.chatml import ChatTemplate, TemplateRefused
from firmtoken.runtime.dialects.thoughts import opens_thought

SOURCES = {
    path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
ASK = {"role": "user", "content": "Naïve 你好 🙂 <b>&amp;</b> 'q' \"r\"?"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write",
            "description": "Writes a “file” <now>.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "more": {"type": ["object", "null"]}},
                "required": ["path"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
ARGUMENTS = {
    "path": "é\n</parameter>",
    "n": 5,
    "x": 1.5,
    "yes": True,
    "no": None,
    "list": ["a", {"b": 1}],
    "more": {"ü": []},
}


def calls(*arguments: object) -> dict[str, Any]:
    return {
        "tool_calls": [
            {
                "type": "function",
                "id": f"call_{index}",
                "function": {"name": "write", "arguments": each},
            }
            for index, each in enumerate(arguments)
        ]
    }


def assistant(content: str, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def result(content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": "call_0"}


CHATS: dict[str, list[dict[str, Any]]] = {
    "one question": [ASK],
    "a system text": [{"role": "system", "content": " Be brief.\n"}, ASK],
    "an empty system text": [{"role": "system", "content": ""}, ASK],
    "several turns": [ASK, assistant("Yes."), ASK, assistant("No. "), ASK],
    "thoughts in their own field": [
        ASK,
        assistant("Yes.", reasoning_content="old thought"),
        ASK,
        assistant("", reasoning_content="new thought", **calls({"path": "a"})),
        result("done"),
    ],
    "thoughts in the text": [
        ASK,
        assistant("<think>\nold thought\n</think>\n\nYes."),
        ASK,
        assistant("<think>\nnew thought\n</think>\n\nI call.", **calls({})),
        result("done"),
    ],
    "calls with text, and their results": [
        ASK,
        assistant("I call.", **calls(ARGUMENTS, {})),
        result("one <x>"),
        result("two\n"),
        assistant("Done."),
        ASK,
    ],
    "calls alone": [ASK, assistant("", **calls(ARGUMENTS)), result("")],
    "an answer to go on with": [ASK, assistant("So")],
}
PARTS = [
    {
        "role": "system",
        "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
    },
    {"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]},
]


@pytest.fixture(scope="module", params=sorted(SOURCES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ours(name: str, chat: list[dict[str, Any]], **options: Any) -> str:
    template = ChatTemplate(SOURCES[name], special_tokens={}, now=lambda: datetime(2026, 1, 2))
    tools = options.pop("tools", None)
    prompt = options.pop("add_generation_prompt", True)
    return template.render(chat, tools=tools, add_generation_prompt=prompt, variables=options)


@pytest.fixture(scope="module")
def theirs() -> Callable[..., str]:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE())
    )

    def render(name: str, chat: list[dict[str, Any]], **options: Any) -> str:
        options = {"add_generation_prompt": True} | options
        text = tokenizer.apply_chat_template(
            chat, chat_template=SOURCES[name], tokenize=False, **options
        )
        return str(text)

    return render


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    "variables",
    [{}, {"enable_thinking": False}, {"preserve_thinking": True}, {"add_generation_prompt": False}],
    ids=str,
)
@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_is_rendered_as_transformers_renders_it(
    name: str, theirs: Callable[..., str], chat: str, variables: dict[str, Any], tools: Any
) -> None:
    options = variables | {"tools": tools}
    assert ours(name, CHATS[chat], **options) == theirs(name, CHATS[chat], **options)


@pytest.mark.parametrize("name", ["qwen3_5", "minimax_m2"])
def test_parts_are_rendered_as_the_text_they_add_up_to(
    name: str, theirs: Callable[..., str]
) -> None:
    flat = [
        {"role": part["role"], "content": "".join(each["text"] for each in part["content"])}
        for part in PARTS
    ]
    assert ours(name, flat) == theirs(name, PARTS) == ours(name, PARTS)


def test_arguments_as_the_client_wrote_them_stay_so_in_qwen3(theirs: Callable[..., str]) -> None:
    chat = [ASK, assistant("", **calls('{"path":"a",  "n":5}')), result("x")]
    text = ours("qwen3", chat)
    assert text == theirs("qwen3", chat)
    assert '{"name": "write", "arguments": {"path":"a",  "n":5}}\n</tool_call>' in text


def test_a_template_has_a_place_for_tools(name: str) -> None:
    template = ChatTemplate(SOURCES[name], special_tokens={}, now=datetime.now)
    assert template.takes_tools()


@pytest.mark.parametrize(
    ("name", "default", "asked", "switched_off"),
    [
        ("qwen3", False, False, False),
        ("qwen3_5", True, True, False),
        ("minimax_m2", True, True, True),
    ],
)
def test_the_prompt_says_whether_the_answer_begins_in_a_thought(
    name: str, default: bool, asked: bool, switched_off: bool
) -> None:
    assert opens_thought(ours(name, [ASK])) is default
    assert opens_thought(ours(name, [ASK], enable_thinking=True)) is asked
    assert opens_thought(ours(name, [ASK], enable_thinking=False)) is switched_off


def test_thinking_switched_off_is_an_empty_thought_in_the_prompt() -> None:
    for name in ("qwen3", "qwen3_5"):
        text = ours(name, [ASK], enable_thinking=False)
        assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("chat", ["thoughts in their own field", "thoughts in the text"])
def test_thoughts_behind_the_last_question_are_kept_and_older_ones_are_not(
    name: str, chat: str
) -> None:
    text = ours(name, CHATS[chat])
    assert "<think>\nnew thought\n</think>\n\n" in text
    assert "old thought" not in text


def test_old_thoughts_are_kept_where_the_template_is_told_so() -> None:
    text = ours("qwen3_5", CHATS["thoughts in their own field"], preserve_thinking=True)
    assert "<think>\nold thought\n</think>\n\nYes." in text


def test_a_call_is_written_as_the_dialect_reads_it(name: str) -> None:
    text = ours(name, [ASK, assistant("", **calls({"path": "a", "n": 5})), result("x")])
    assert {
        "qwen3": '<tool_call>\n{"name": "write", "arguments": {"path": "a", "n": 5}}\n</tool_call>',
        "qwen3_5": "<tool_call>\n<function=write>\n<parameter=path>\na\n</parameter>\n"
        "<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
        "minimax_m2": '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">a</parameter>\n'
        '<parameter name="n">5</parameter>\n</invoke>\n</minimax:tool_call>',
    }[name] in text


@pytest.mark.parametrize(
    ("name", "chat", "sentence"),
    [
        ("qwen3_5", [assistant("a")], "No user query found in messages."),
        ("qwen3_5", [ASK, {"role": "system", "content": "x"}], "System message must be at the"),
        ("qwen3_5", [ASK, {"role": "critic", "content": "x"}], "Unexpected message role."),
        ("minimax_m2", [ASK, result("x")], "Message has tool role, but there was no previous"),
    ],
)
def test_a_chat_that_a_template_cannot_write_is_refused_in_its_own_words(
    name: str, chat: list[dict[str, Any]], sentence: str
) -> None:
    with pytest.raises(TemplateRefused, match=sentence):
        ours(name, chat)
