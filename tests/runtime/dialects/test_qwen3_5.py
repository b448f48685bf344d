"""Qwen3.5's spelling: calls as a tag per parameter, values without quotes."""

import pytest
from tests.runtime.dialects.reading import arguments, cuts, deltas, lines

from firmtoken.runtime.dialects.qwen3_5 import QWEN3_5

HEAD = "<tool_call>\n<function=write>\n"
TAIL = "</function>\n</tool_call>"


def value(name: str, text: str) -> str:
    return f"<parameter={name}>\n{text}\n</parameter>\n"


def call(*values: str) -> str:
    return HEAD + "".join(values) + TAIL


CASES = [
    ("hello", [("content", "hello")]),
    ("  hello \n", [("content", "  hello \n")]),
    ("", []),
    # Thoughts.
    ("<think>\n\n</think>\n\nhello", [("content", "hello")]),
    ("\n<think></think>hello", [("content", "hello")]),
    ("<think>\n\n</think>", []),
    ("<think>\nso\n\nit\n</think>\n\nhello", [("reasoning", "so\n\nit"), ("content", "hello")]),
    ("<think>", []),
    ("<think>so\n</thi", [("reasoning", "so\n</thi")]),
    ("<thinking>", [("content", "<thinking>")]),
    ("<thi", [("content", "<thi")]),
    ("a<think>b</think>", [("content", "a<think>b</think>")]),
    ("a</think>b", [("content", "a</think>b")]),
    ("<think></think><think></think>x", [("content", "<think></think>x")]),
    # Calls.
    (
        "I write.\n\n" + call(value("path", "a.txt"), value("mode", "5")) + "\n",
        [
            ("content", "I write."),
            ("call", "write"),
            ("arguments", '{"path": "a.txt", "mode": 5}'),
            ("end", ""),
        ],
    ),
    (
        f"{call()}\n{call(value('path', 'b'))} done.",
        [
            ("call", "write"),
            ("arguments", "{}"),
            ("end", ""),
            ("call", "write"),
            ("arguments", '{"path": "b"}'),
            ("end", ""),
            ("content", "done."),
        ],
    ),
    (
        call().replace("write", "unknown_tool"),
        [("call", "unknown_tool"), ("arguments", "{}"), ("end", "")],
    ),
    # Two functions in one block, and no end of the function or of the block.
    (
        f"{HEAD}</function>\n<function=stop>\n</function>",
        [
            ("call", "write"),
            ("arguments", "{}"),
            ("end", ""),
            ("call", "stop"),
            ("arguments", "{}"),
            ("end", ""),
        ],
    ),
    (
        f"{HEAD}{value('path', 'a')}</tool_call>b",
        [("call", "write"), ("arguments", '{"path": "a"}'), ("end", ""), ("content", "b")],
    ),
    # What is no call is content, as it stands.
    ("use <tool_call> so", [("content", "use <tool_call> so")]),
    ("\n<tool_call>\n<functio", [("content", "\n<tool_call>\n<functio")]),
    ("<tool_call>\n<function=a", [("content", "<tool_call>\n<function=a")]),
    ("<tool_call>\n<function=>x", [("content", "<tool_call>\n<function=>x")]),
    ("<tool_call>\n<function=a\nb>", [("content", "<tool_call>\n<function=a\nb>")]),
    ("<tool_call>" * 2, [("content", "<tool_call>" * 2)]),
    ('<tool_call>\n{"name": 1}', [("content", '<tool_call>\n{"name": 1}')]),
    # What is between the parts of a call is not lost.
    (
        f"{HEAD}so \n{value('path', 'a')}{TAIL.replace('</t', 'and</t')}",
        [
            ("call", "write"),
            ("content", "so"),
            ("arguments", '{"path": "a"}'),
            ("end", ""),
            ("content", "and"),
        ],
    ),
    (
        f"{HEAD}<parameter=>{TAIL}",
        [("call", "write"), ("content", "<parameter=>"), ("arguments", "{}"), ("end", "")],
    ),
    # Cut by the budget: the arguments stay open, so that nobody runs half a call.
    (HEAD, [("call", "write")]),
    (f"{HEAD}<param", [("call", "write")]),
    (f"{HEAD}<parameter=pa", [("call", "write")]),
    (f"{HEAD}<parameter=path>", [("call", "write"), ("arguments", '{"path": "')]),
    (f"{HEAD}<parameter=path>\na\n", [("call", "write"), ("arguments", '{"path": "a\\n')]),
    (f"{HEAD}<parameter=mode>\n12", [("call", "write"), ("arguments", '{"mode": 12')]),
    (f"{HEAD}{value('mode', '12')}", [("call", "write"), ("arguments", '{"mode": 12')]),
    (f"{HEAD}{value('path', 'a')}</funct", [("call", "write"), ("arguments", '{"path": "a"')]),
]


@pytest.mark.report(68)
@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_text_is_read_the_same_however_it_is_cut(
    text: str, expected: list[tuple[str, str]]
) -> None:
    for pieces in cuts(text):
        assert lines(deltas(QWEN3_5, pieces)) == expected


def test_a_thought_that_the_prompt_opened_needs_no_tag() -> None:
    text = "\nso it is\n</think>\n\nhello"
    for pieces in cuts(text):
        found = lines(deltas(QWEN3_5, pieces, in_thought=True))
        assert found == [("reasoning", "so it is"), ("content", "hello")]
    assert lines(deltas(QWEN3_5, ["so it"], in_thought=True)) == [("reasoning", "so it")]


def test_without_tools_a_call_is_content_as_it_stands() -> None:
    text = "a \n" + call(value("path", "a")) + "\n b"
    for pieces in cuts(text):
        assert lines(deltas(QWEN3_5, pieces, tools=None)) == [("content", text)]


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("path", "5", "5"),
        ("path", "", ""),
        ("path", "\n a\n\n", "\n a\n\n"),
        ("path", 'say "hi" \\ \t', 'say "hi" \\ \t'),
        ("path", "naïve 你好 🙂 \u2028", "naïve 你好 🙂 \u2028"),
        ("text", "a\n</parameter>\nb", "a\n</parameter>\nb"),
        ("text", "</parameter> </function", "</parameter> </function"),
        ("text", "<parameter=path>\nx", "<parameter=path>\nx"),
        ("text", "</function>\n</tool_call>", "</function>\n</tool_call>"),
        ("mode", "5", 5),
        ("mode", " -5 ", -5),
        ("mode", "five", "five"),
        ("mode", "", ""),
        ("mode", '"5"', '"5"'),
        ("force", "true", True),
        ("force", "False", False),
        ("force", "no", "no"),
        ("tags", '["a",\n "</parameter>"]', ["a", "</parameter>"]),
        ("tags", "[1, 2", "[1, 2"),
        ("more", '{"a": {"b": [null]}}', {"a": {"b": [None]}}),
        ("more", "[1]", "[1]"),
        ("note", "None", None),
        ("note", "null", None),
        ("note", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_a_value_has_the_type_that_its_schema_gives(name: str, written: str, read: object) -> None:
    for pieces in cuts(call(value(name, written), value("path", "z"))):
        assert arguments(deltas(QWEN3_5, pieces)) == [{name: read, "path": "z"}]


def test_a_value_needs_no_line_breaks_of_its_own() -> None:
    text = "<tool_call><function=write><parameter=path>a</parameter></function></tool_call>"
    for pieces in cuts(text):
        assert arguments(deltas(QWEN3_5, pieces)) == [{"path": "a"}]


def test_a_text_value_is_shown_while_it_grows() -> None:
    found = deltas(QWEN3_5, [HEAD, "<parameter=text>\n", "one ", "two\n", "three"])
    shown = [lines([delta])[0] for delta in found]
    assert [text for kind, text in shown if kind == "arguments"] == [
        '{"text": "',
        "one ",
        "two",
        "\\nthree",
    ]


@pytest.mark.report(78)
def test_a_call_that_ends_an_unclosed_thought_is_a_call() -> None:
    text = "I must write.\n" + call(value("path", "a")) + "\n" + call() + "\n"
    for pieces in cuts(text):
        assert lines(deltas(QWEN3_5, pieces, in_thought=True)) == [
            ("reasoning", "I must write."),
            ("call", "write"),
            ("arguments", '{"path": "a"}'),
            ("end", ""),
            ("call", "write"),
            ("arguments", "{}"),
            ("end", ""),
        ]


@pytest.mark.parametrize(
    "thought",
    [
        call(value("path", "draft")) + " or so",
        call(value("path", "draft")),
        HEAD + "and so on",
        "a <tool_call> is written so",
        "<tool_call><tool_call>",
        call() + "<tool_call> no",
    ],
)
def test_a_call_that_is_drafted_in_a_thought_is_thought(thought: str) -> None:
    text = f"{thought}\n</think>\n\n{call()}"
    for pieces in cuts(text):
        assert lines(deltas(QWEN3_5, pieces, in_thought=True)) == [
            ("reasoning", thought),
            ("call", "write"),
            ("arguments", "{}"),
            ("end", ""),
        ]


def test_an_unclosed_thought_with_half_a_call_or_text_behind_it_is_thought() -> None:
    for text in (
        HEAD.strip(),
        call() + "x",
        "<tool_call>",
        call() + "<tool_call>",
        call() + "</thi",
    ):
        for pieces in cuts(text):
            assert lines(deltas(QWEN3_5, pieces, in_thought=True)) == [("reasoning", text)]


@pytest.mark.report(69)
def test_an_only_call_ends_the_answer() -> None:
    text = "so\n" + call(value("path", "a")) + call() + "more"
    for pieces in cuts(text):
        assert lines(deltas(QWEN3_5, pieces, one_call=True)) == [
            ("content", "so"),
            ("call", "write"),
            ("arguments", '{"path": "a"}'),
            ("end", ""),
        ]


def test_content_is_not_held_back() -> None:
    found = deltas(QWEN3_5, ["h", "i", "<think>"])
    assert [lines([delta])[0][1] for delta in found] == ["h", "i", "<think>"]
