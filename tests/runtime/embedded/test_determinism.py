"""Temperature 0 says the same each time, over answers long enough to meet ties."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parents[3] / "profiles" / "weights" / "tiny-moe"
OUTPUT = 520
QUESTIONS = ("What does river mean?", "Define music.", "meaning of dog")


def prompt(question: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.report(62)
def test_three_runs_with_experts_offloaded_are_one_text(start: Callable[..., Any]) -> None:
    running = start("tiny-cpu")
    holdings = running.engine.scheduler.holdings
    said = []
    for other in QUESTIONS:
        # What another request has left resident must change nothing but time; nothing of the prompt itself is cached.
        running.ask(prompt(other), 20)
        holdings.cache.evict(holdings.pages.num_usable)
        before = running.engine.stats().expert_misses
        said.append(running.ask(prompt(QUESTIONS[0]), OUTPUT))
        assert running.engine.stats().expert_misses > before
        assert running.admissions()[-1].cached_tokens == 0
    assert len(said[0]) == OUTPUT and len(set(said[0])) > 20
    assert said[1] == said[0] and said[2] == said[0]
