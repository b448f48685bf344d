"""Any split of the same text gives the same thought, content and calls, whatever the text is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.dialects.reading import TOOLS, arguments, at, deltas, lines

from firmtoken.runtime.dialects.dialect import Dialect
from firmtoken.runtime.dialects.registry import DIALECTS
from firmtoken.runtime.dialects.schemas import ToolSchemas

WORDS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=write>", "</function>"),
    *("<parameter=path>", "<parameter=mode>", "</parameter>", "\n", " ", "a", "é🙂", "<", "5", '"'),
    *("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="write">', "</invoke>"),
    *('<parameter name="path">', '<parameter name="tags">', '{"name": "write", ', '"arguments": '),
    *("{", "}", "[", "]", "\\", '"a"', ":", ",", "</thi", "<tool", "null", "<function=", ">"),
    *('{"name": "write", "arguments": {', "\n</parameter>\n", "\n</tool_call>"),
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)
PLACES = st.lists(st.integers(0, 400), max_size=12)
DIALECT = st.sampled_from(DIALECTS)
WITH_TOOLS = st.sampled_from([TOOLS, None])


@pytest.mark.report(76)
@settings(max_examples=1500)
@given(
    text=TEXTS,
    places=PLACES,
    dialect=DIALECT,
    tools=WITH_TOOLS,
    in_thought=st.booleans(),
    one_call=st.booleans(),
)
def test_any_split_gives_the_same(
    text: str,
    places: list[int],
    dialect: Dialect,
    tools: ToolSchemas | None,
    in_thought: bool,
    one_call: bool,
) -> None:
    whole, split, fine = (
        lines(deltas(dialect, pieces, in_thought=in_thought, tools=tools, one_call=one_call))
        for pieces in ([text], at(text, places), list(text))
    )
    assert whole == split == fine


@settings(max_examples=1000)
@given(text=TEXTS, dialect=DIALECT, in_thought=st.booleans())
def test_a_complete_call_has_arguments_that_are_a_json_object(
    text: str, dialect: Dialect, in_thought: bool
) -> None:
    for read in arguments(deltas(dialect, [text], in_thought=in_thought)):
        assert isinstance(read, dict)


@settings(max_examples=500)
@given(text=TEXTS, dialect=DIALECT)
def test_letters_are_never_lost(text: str, dialect: Dialect) -> None:
    """Each `é` of the text, which no tag has, is in some delta."""
    shown = "".join(part for _, part in lines(deltas(dialect, [text])))
    assert shown.count("é") == text.count("é")


@given(text=TEXTS, dialect=DIALECT)
def test_without_tools_all_behind_the_thought_is_content(text: str, dialect: Dialect) -> None:
    answer = f"x{text}"
    assert lines(deltas(dialect, [answer], tools=None)) == [("content", answer)]
