"""Qwen3.5's spelling: any split of an answer gives the same content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmtoken.runtime.dialects.qwen3_5 import Qwen3_5
from firmtoken.runtime.dialects.registry import DIALECTS, UnknownDialect, find_dialect

ANSWERS = st.lists(
    st.sampled_from(["<think>", "</think>", "\n", " ", "a", "<", "<thi"]), max_size=8
)


def read(pieces: list[str]) -> list[str]:
    dialect = Qwen3_5()
    shown = [delta.text for piece in pieces for delta in dialect.feed(piece)]
    return shown + [delta.text for delta in dialect.finish()]


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ("hello", "hello"),
        ("<think>\n\n</think>\n\nhello", "hello"),
        ("\n<think></think>hello", "hello"),
        ("<think>\n\n</think>", ""),
        ("<think>so</think>hello", "<think>so</think>hello"),
        ("<think>", "<think>"),
        ("  hello", "  hello"),
        ("a<think></think>", "a<think></think>"),
        ("<thinking>", "<thinking>"),
        ("", ""),
        ("<think>\n\n</think>\n\n<think></think>x", "<think></think>x"),
    ],
)
def test_an_empty_thought_at_the_head_is_dropped(answer: str, content: str) -> None:
    assert "".join(read([answer])) == content


@given(pieces=ANSWERS)
def test_any_split_gives_the_same_content(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert "".join(read(pieces)) == "".join(read([text])) == "".join(read(list(text)))


def test_content_is_not_held_back() -> None:
    assert read(["h", "i", "<think>"]) == ["h", "i", "<think>"]


def test_a_dialect_is_found_by_the_name_in_the_models_facts() -> None:
    assert find_dialect("qwen3_5") is Qwen3_5
    with pytest.raises(UnknownDialect, match="unknown dialect `x`: known are `qwen3_5`"):
        find_dialect("x")
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
