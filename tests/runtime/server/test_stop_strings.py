"""Stop strings: found at every position, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmtoken.runtime.server.stop_strings import StopStrings

# A small alphabet, so that stop strings do occur and overlap.
TEXT = st.text("abc", max_size=20)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), max_size=4)


def run(pieces: list[str], stops: list[str], *, keep_stop: bool = False) -> tuple[str, bool]:
    matcher = StopStrings(stops, keep_stop=keep_stop)
    shown = "".join(matcher.feed(piece) for piece in pieces)
    return shown + matcher.finish(), matcher.matched


def expected(text: str, stops: list[str], *, keep_stop: bool) -> tuple[str, bool]:
    """The plain definition: the first end of any stop string, the longest one that ends there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end if keep_stop else end - max(map(len, ending))], True
    return text, False


@given(text=TEXT, stops=STOPS, keep_stop=st.booleans(), data=st.data())
def test_any_cut_of_a_text_stops_at_the_same_place(
    text: str, stops: list[str], keep_stop: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    assert run(pieces, stops, keep_stop=keep_stop) == expected(text, stops, keep_stop=keep_stop)


@given(text=TEXT, stops=STOPS)
def test_what_was_shown_is_never_part_of_the_stop(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops, keep_stop=False)
    shown = ""
    for letter in text:
        shown += matcher.feed(letter)
        assert expected(text, stops, keep_stop=False)[0].startswith(shown)


@pytest.mark.parametrize("position", range(12))
def test_a_stop_is_found_at_every_position(position: int) -> None:
    text = "." * position + "STOP" + "." * (11 - position)
    assert run(list(text), ["STOP"]) == ("." * position, True)


def test_only_what_may_be_a_stop_is_held_back() -> None:
    matcher = StopStrings(["</s>"], keep_stop=False)
    assert [matcher.feed(piece) for piece in ("a<", "b", "</", "s", "x")] == [
        "a",
        "<b",
        "",
        "",
        "</sx",
    ]


def test_nothing_is_shown_after_the_stop() -> None:
    matcher = StopStrings(["x"], keep_stop=False)
    assert [matcher.feed("axb"), matcher.feed("c"), matcher.finish()] == ["a", "", ""]


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings([], keep_stop=False).feed("abc") == "abc"
