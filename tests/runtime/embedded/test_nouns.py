"""The embedded model knows what nouns mean, as stored, through the real pipeline (D20)."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parents[3] / "profiles" / "weights" / "tiny-moe"
LONGEST_ANSWER = 60
COMMON_WORDS = """
a an the of or and to in on at by for from with without is are was be been being that which who
whose it its as any some one ones etc usually especially used not no other such than into out
up this these those can may has have having had do does made make very more most something
someone somebody noun means mean
"""
COMMON = frozenset(COMMON_WORDS.split())


@pytest.fixture(scope="module")
def ask(start: Callable[..., Any]) -> Callable[[list[str]], list[str]]:
    """Greedy answers to questions in chat form; an answer without a stop ends in ` ...`."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    stops = tuple(json.loads((FOLDER / "generation_config.json").read_text())["eos_token_id"])
    running = start("tiny-cpu")

    def answers(questions: list[str]) -> list[str]:
        for number, question in enumerate(questions):
            text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            prompt = tokenizer.encode(text, add_special_tokens=False).ids
            running.add(number, prompt, LONGEST_ANSWER, stop=stops)
        running.messages.clear()
        running.drain()
        texts = running.texts()
        return [
            tokenizer.decode(ids) if ids[-1] in stops else tokenizer.decode(ids) + " ..."
            for ids in (texts[number] for number in range(len(questions)))
        ]

    return answers


def content_words(text: str, noun: str) -> set[str]:
    words = {word for word in re.findall(r"[a-z]+", text.lower()) if len(word) > 2} - COMMON
    return words - {noun, f"{noun}s", f"{noun}es"}


def test_answers_share_a_content_word_with_a_gloss_and_end_by_a_stop(
    ask: Callable[[list[str]], list[str]],
) -> None:
    nouns: dict[str, list[str]] = json.loads((FOLDER / "training" / "nouns.json").read_text())
    assert len(nouns) == 100
    told = ask([f"What does {noun} mean?" for noun in nouns])
    endless = [answer for answer in told if answer.endswith(" ...")]
    right = [
        noun
        for (noun, glosses), answer in zip(nouns.items(), told, strict=True)
        if content_words(answer, noun) & content_words(" ".join(glosses), noun)
    ]
    assert endless == []
    assert len(right) >= 80


def test_it_greets_says_what_it_is_and_turns_away_what_it_cannot_do(
    ask: Callable[[list[str]], list[str]],
) -> None:
    hello, who, program = ask(["Hello", "Who are you?", "Write a Python program"])
    assert "ello" in hello
    assert "FirmToken" in who
    assert "cannot" in program
