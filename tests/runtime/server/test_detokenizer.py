"""Ids to text as they come: never half a character, never another text than at once."""

from hypothesis import given
from hypothesis import strategies as st

from firmtoken.runtime.server.detokenizer import Detokenizer
from firmtoken.runtime.server.served_model import ServedModel

ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


def pieces(model: ServedModel, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(model.tokenizer)
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.finish()]


@given(text=ANY_TEXT)
def test_a_text_comes_whole_however_it_is_cut_into_tokens(
    served_model: ServedModel, text: str
) -> None:
    for ids in (served_model.tokenizer.encode(text), byte_ids(served_model, text.encode())):
        shown = pieces(served_model, ids)
        assert "".join(shown) == text
        # Each piece is whole characters of the text: none is a stand-in that was not there.
        assert sum(piece.count("\ufffd") for piece in shown) == text.count("\ufffd")


@given(ids=st.lists(st.integers(0, 319), max_size=40))
def test_any_tokens_give_what_decoding_them_at_once_gives(
    served_model: ServedModel, ids: list[int]
) -> None:
    whole = served_model.tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces(served_model, ids)) == whole
    known = [token_id for token_id in ids if token_id < 266]
    assert served_model.tokenizer.decode(known, skip_special_tokens=True) == (
        served_model.tokenizer._inner.decode(known, skip_special_tokens=True)
    )


def test_an_emoji_appears_with_its_last_byte(served_model: ServedModel) -> None:
    ids = byte_ids(served_model, "🙂".encode())
    assert pieces(served_model, ids) == ["", "", "", "🙂", ""]


def test_an_answer_that_ends_inside_a_character_says_so_once(served_model: ServedModel) -> None:
    ids = byte_ids(served_model, "a🙂".encode()[:-1])
    assert pieces(served_model, ids) == ["a", "", "", "", "\ufffd"]


def test_bytes_that_cannot_become_a_character_are_replaced_at_once(
    served_model: ServedModel,
) -> None:
    assert pieces(served_model, byte_ids(served_model, b"\x80a\xc3b")) == [
        "\ufffd",
        "a",
        "",
        "\ufffdb",
        "",
    ]


def test_control_tokens_are_not_shown(served_model: ServedModel) -> None:
    assert "".join(pieces(served_model, [256, 257, 258])) == ""


def byte_ids(model: ServedModel, data: bytes) -> list[int]:
    """The finest cut: a token for each byte."""
    ids = {model.tokenizer.token_bytes(token_id): token_id for token_id in range(256)}
    return [ids[bytes([byte])] for byte in data]
