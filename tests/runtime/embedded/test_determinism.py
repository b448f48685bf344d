"""Temperature 0 says the same each time, over answers long enough to meet ties."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parents[3] / "profiles" / "weights" / "tiny-moe"
OUTPUT = 520
QUESTIONS = ("What does river mean?", "Define music.", "meaning of dog")
"""The answer to the first is asked for three times, each time after another of them."""


def prompt(question: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def say(running: Any, request_id: int, question: str) -> tuple[list[int], torch.Tensor]:
    """A greedy answer, and the logits [N,V] of its decode steps."""
    running.add(request_id, prompt(question), OUTPUT)
    running.engine.step()
    logits = []
    while not running.engine.idle:
        running.engine.step()
        logits.append(running.logits_of("decode"))
    return running.text(request_id), torch.stack(logits)


@pytest.mark.report(62)
def test_three_runs_with_experts_offloaded_are_one_text_to_the_last_bit(
    start: Callable[..., Any],
) -> None:
    running = start("tiny-cpu")
    holdings = running.engine.scheduler.holdings
    runs = []
    for number, other in enumerate(QUESTIONS):
        # What another request has left resident must change nothing but time; nothing of the prompt itself is cached.
        running.ask(prompt(other), 20)
        holdings.cache.evict(holdings.pages.num_usable)
        before = running.engine.stats().expert_misses
        runs.append(say(running, number, QUESTIONS[0]))
        assert running.engine.stats().expert_misses > before
        assert running.admissions()[-1].cached_tokens == 0
    (text, logits), *others = runs
    best = logits.topk(2, dim=1).values
    assert len(text) == OUTPUT and float((best[:, 0] - best[:, 1]).min()) < 0.01, "no tie was met"
    for again, same in others:
        assert again == text
        assert torch.equal(same, logits)
