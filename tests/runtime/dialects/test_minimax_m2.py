"""MiniMax-M2's spelling: several calls in one block, values with all their white space."""

import pytest
from tests.runtime.dialects.reading import arguments, cuts, deltas, lines

from firmtoken.runtime.dialects.minimax_m2 import MINIMAX_M2


def value(name: str, text: str) -> str:
    return f'<parameter name="{name}">{text}</parameter>\n'


def invoke(name: str, *values: str) -> str:
    return f'<invoke name="{name}">\n' + "".join(values) + "</invoke>\n"


def block(*invokes: str) -> str:
    return "<minimax:tool_call>\n" + "".join(invokes) + "</minimax:tool_call>"


CASES = [
    (
        "so\n</think>\n\nI do.\n" + block(invoke("write", value("path", "a")), invoke("stop")),
        [
            ("reasoning", "so"),
            ("content", "I do."),
            ("call", "write"),
            ("arguments", '{"path": "a"}'),
            ("end", ""),
            ("call", "stop"),
            ("arguments", "{}"),
            ("end", ""),
        ],
    ),
    (
        "</think>" + block(invoke("stop")) + "\n" + block(invoke("stop")) + "\nbye",
        [
            ("call", "stop"),
            ("arguments", "{}"),
            ("end", ""),
            ("call", "stop"),
            ("arguments", "{}"),
            ("end", ""),
            ("content", "bye"),
        ],
    ),
    (
        "</think><minimax:tool_call>\n<invoke name='x'>",
        [("content", "<minimax:tool_call>\n<invoke name='x'>")],
    ),
    (
        '</think><minimax:tool_call><invoke name="x"',
        [("content", '<minimax:tool_call><invoke name="x"')],
    ),
    (
        '</think><minimax:tool_call><invoke name="x">and<invoke name="y">',
        [("call", "x"), ("content", 'and<invoke name="y">')],
    ),
    ("</think>" + block(), [("content", block())]),
    ("so it is", [("reasoning", "so it is")]),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_text_is_read_the_same_however_it_is_cut(
    text: str, expected: list[tuple[str, str]]
) -> None:
    for pieces in cuts(text):
        assert lines(deltas(MINIMAX_M2, pieces, in_thought=True)) == expected


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("path", "\n a \n", "\n a \n"),
        ("path", "", ""),
        ("text", 'a</parameter>\n"b"', 'a</parameter>\n"b"'),
        ("text", "</minimax:tool_call></invoke>", "</minimax:tool_call></invoke>"),
        ("mode", "5", 5),
        ("mode", "\n5\n", 5),
        ("tags", '["a"]', ["a"]),
        ("more", '{"é": 1.50}', {"é": 1.5}),
        ("force", "true", True),
        ("note", "null", None),
    ],
)
def test_a_value_has_the_type_that_its_schema_gives(name: str, written: str, read: object) -> None:
    text = block(invoke("write", value(name, written), value("path", "z")))
    for pieces in cuts(text):
        assert arguments(deltas(MINIMAX_M2, pieces)) == [{name: read, "path": "z"}]


@pytest.mark.report(75)
def test_an_unfinished_call_does_not_run_into_the_next_block() -> None:
    text = '<minimax:tool_call><invoke name="write"></minimax:tool_call>' + block(invoke("stop"))
    for pieces in cuts(text):
        assert lines(deltas(MINIMAX_M2, pieces)) == [
            ("call", "write"),
            ("arguments", "{}"),
            ("end", ""),
            ("call", "stop"),
            ("arguments", "{}"),
            ("end", ""),
        ]
