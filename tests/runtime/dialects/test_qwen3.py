"""Qwen3's spelling: each call one JSON object."""

import pytest
from tests.runtime.dialects.reading import cuts, deltas, lines

from firmtoken.runtime.dialects.qwen3 import QWEN3


def call(arguments: str, name: str = "write") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def read_call(arguments: str, name: str = "write") -> list[tuple[str, str]]:
    return [("call", name), ("arguments", arguments), ("end", "")]


CASES = [
    (
        "<think>\nso\n</think>\n\nI do.\n" + call('{"path": "a"}'),
        [("reasoning", "so"), ("content", "I do."), *read_call('{"path": "a"}')],
    ),
    (
        call("{}") + "\n" + call('{"a": [1, {"b": "}"}]}', "stop") + "\nbye",
        [*read_call("{}"), *read_call('{"a": [1, {"b": "}"}]}', "stop"), ("content", "bye")],
    ),
    ('<tool_call>{"name":"stop"}</tool_call>', read_call("{}", "stop")),
    (
        '<tool_call>\n{ "name" : "stop" ,\n "arguments" : {} }\n</tool_call>',
        read_call("{}", "stop"),
    ),
    # The end tag inside a string, quotes, brackets and backslashes in it.
    (
        call('{"text": "a </tool_call> \\" } ] \\\\"}'),
        read_call('{"text": "a </tool_call> \\" } ] \\\\"}'),
    ),
    (call('{"text": "naïve 你好 🙂 \\n"}'), read_call('{"text": "naïve 你好 🙂 \\n"}')),
    # Raw line breaks in a string, which JSON forbids, are escaped.
    (call('{"text": "a\n\tb"}'), read_call('{"text": "a\\n\\tb"}')),
    # No call: content as it stands.
    ("a <tool_call> b", [("content", "a <tool_call> b")]),
    ("<tool_call>\n[1]</tool_call>", [("content", "<tool_call>\n[1]</tool_call>")]),
    ('<tool_call>\n{"name": "a", ', [("content", '<tool_call>\n{"name": "a", ')]),
    (
        '<tool_call>\n{"name": "a", "arguments": "x"}\n</tool_call>\n' + call("{}"),
        [
            ("content", '<tool_call>\n{"name": "a", "arguments": "x"}\n</tool_call>'),
            *read_call("{}"),
        ],
    ),
    (
        '<tool_call>\n{"arguments": {}, "name": "a"}\n</tool_call>',
        [("content", '<tool_call>\n{"arguments": {}, "name": "a"}\n</tool_call>')],
    ),
    # More keys than there should be are not lost.
    (
        '<tool_call>\n{"name": "stop", "arguments": {}, "id": 5}\n</tool_call>',
        [*read_call("{}", "stop"), ("content", ', "id": 5')],
    ),
    # Arguments that are no JSON, or end too soon, have no end.
    (call("{'a': 1}"), [("call", "write"), ("arguments", "{'a': 1}")]),
    (
        '<tool_call>\n{"name": "write", "arguments": {"a": "b\n</tool_call>\n' + call("{}", "stop"),
        [("call", "write"), ("arguments", '{"a": "b'), *read_call("{}", "stop")],
    ),
    (
        '<tool_call>\n{"name": "write", "arguments": {"a": "b',
        [("call", "write"), ("arguments", '{"a": "b')],
    ),
    # Neither end is needed once the object is whole.
    ('<tool_call>\n{"name": "stop", "arguments": {}', read_call("{}", "stop")),
    ('<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_', read_call("{}", "stop")),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_text_is_read_the_same_however_it_is_cut(
    text: str, expected: list[tuple[str, str]]
) -> None:
    for pieces in cuts(text):
        assert lines(deltas(QWEN3, pieces)) == expected


def test_what_speaks_of_a_call_at_length_is_content_soon() -> None:
    text = '<tool_call> {"name": ' + "x" * 2000
    for pieces in ([text], list(text)):
        found = deltas(QWEN3, pieces)
        assert lines(found) == [("content", text)]
    assert len(found) > 900


def test_arguments_are_shown_while_they_grow() -> None:
    found = deltas(QWEN3, ['<tool_call>{"name": "write", "arguments": {', '"text": "one', ' two"'])
    assert [lines([delta])[0][1] for delta in found] == ["write", "{", '"text": "one', ' two"']


def test_a_call_that_ends_an_unclosed_thought_is_a_call() -> None:
    text = "<think>\nI write.\n" + call('{"path": "a"}')
    for pieces in cuts(text):
        assert lines(deltas(QWEN3, pieces)) == [
            ("reasoning", "I write."),
            *read_call('{"path": "a"}'),
        ]
