"""The text that shows whether weights are read right: which one, which part of it counts, and what is wrong with it."""

import time
from datetime import datetime
from pathlib import Path

import pytest

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.known_text import TOKENS, known_text
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.server.tokenizer import Tokenizer, load_tokenizer
from firmtoken.schema.load import load_profile
from firmtoken.schema.model import Perplexity


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    folder = load_profile("tiny-cpu").profile.model.source
    return load_tokenizer(Path(folder.path), now=datetime.now).tokenizer  # type: ignore[union-attr]  # a path


def test_a_profile_that_names_none_gets_the_beginning_of_a_book(tokenizer: Tokenizer) -> None:
    found = known_text(Perplexity(), tokenizer, {"XDG_STATE_HOME": "/state"})
    text = tokenizer.decode(found.token_ids, skip_special_tokens=False)
    assert text.startswith(
        "Alice was beginning to get very tired of sitting by her sister on the bank"
    )
    assert (len(found.token_ids), all(found.counted), found.most) == (TOKENS, True, 100)
    assert found.folder == "/state/firmtoken/perplexity"


def test_only_what_is_marked_counts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("The dog ⟪is an animal⟫ and ⟪so⟫ is the cat", encoding="utf-8")
    found = known_text(Perplexity(text=str(file), max=3), tokenizer, {})
    counted = [
        token for token, counts in zip(found.token_ids, found.counted, strict=True) if counts
    ]
    assert tokenizer.decode(counted, skip_special_tokens=False) == "is an animalso"
    whole = tokenizer.decode(found.token_ids, skip_special_tokens=False)
    assert whole == "The dog is an animal and so is the cat"
    assert found.most == 3


def test_a_path_starts_at_the_file_that_it_is_written_in() -> None:
    text = Path(load_profile("tiny-cpu").profile.model.perplexity.text)
    assert text.is_absolute() and text.name == "perplexity.txt" and text.is_file()
    assert load_profile("4090-qwen").profile.model.perplexity == Perplexity()


@pytest.mark.parametrize(
    ("content", "exit_code", "sentence"),
    [
        (None, FAILED, "no such file"),
        ("", WRONG, "has nothing that counts"),
        ("a", WRONG, "has nothing that counts"),
        ("all of this is before ⟪", WRONG, "has nothing that counts"),
        (b"\xff", FAILED, "not UTF-8 text"),
    ],
)
def test_a_text_that_is_none_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, content: str | bytes | None, exit_code: int, sentence: str
) -> None:
    file = tmp_path / "text.txt"
    if isinstance(content, str):
        file.write_text(content, encoding="utf-8")
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(Failure, match=sentence) as refused:
        known_text(Perplexity(text=str(file)), tokenizer, {})
    assert refused.value.exit_code == exit_code


def test_of_a_library_only_the_beginning_is_read(tokenizer: Tokenizer, tmp_path: Path) -> None:
    file = tmp_path / "library.txt"
    file.write_text("word " * 8_000_000)
    begun = time.monotonic()
    assert len(known_text(Perplexity(text=str(file)), tokenizer, {}).token_ids) == TOKENS
    assert time.monotonic() - begun < 5
