"""Hit, chunked, preempted, batched and offloaded requests say what a cold, lone, resident run says (D19)."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from firmtoken.compiler.plan import Plan

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "profiles" / "weights" / "tiny-moe"
NUM_REQUESTS = 200
ASKED = ("What does {} mean?", "Define {}.", "What is a {}?", "meaning of {}", "{}")
SYSTEM = (
    "You explain English words briefly, kindly and without examples, to people who learn the language. "
    * 4
)


def uncached(plan: Plan) -> Plan:
    return replace(plan, kv_cache=replace(plan.kv_cache, type="none"))


def unreserved(plan: Plan) -> Plan:
    """Admits as many as fit now, so that growing requests run into each other and are preempted."""
    return replace(plan, admission=replace(plan.admission, output_reserve=1))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Questions and conversations of 8 to 400 tokens, half of them behind one shared system text."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    nouns = list(json.loads((FOLDER / "training" / "nouns.json").read_text()))
    draw = random.Random(7)
    made = []
    for _ in range(NUM_REQUESTS):
        text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n" if draw.random() < 0.5 else ""
        for _ in range(draw.choice((0, 0, 1, 4))):
            noun = draw.choice(nouns)
            text += f"<|im_start|>user\nDefine {noun}.<|im_end|>\n<|im_start|>assistant\nSomething.<|im_end|>\n"
        question = draw.choice(ASKED).format(draw.choice(nouns))
        text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        made.append(tokenizer.encode(text, add_special_tokens=False).ids)
    return made


@pytest.fixture(scope="module")
def outputs() -> list[int]:
    """Mostly short; twice four long ones together, which outgrow the pool."""
    draw = random.Random(8)
    return [
        130 if number % 100 < 4 else draw.choice((3, 5, 9, 20)) for number in range(NUM_REQUESTS)
    ]


@pytest.fixture(scope="module")
def cold(
    start: Callable[..., Any], prompts: list[list[int]], outputs: list[int]
) -> list[list[int]]:
    lone = start("tiny-cpu-resident", change=uncached)
    return [lone.ask(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)]


@pytest.mark.timeout(900)
@pytest.mark.report(53, 57)
def test_200_mixed_requests_say_what_they_say_alone(
    start: Callable[..., Any],
    prompts: list[list[int]],
    outputs: list[int],
    cold: list[list[int]],
    reference: Any,
) -> None:
    # A pool that four of the longer requests overrun, and spans of several chunks and several requests.
    mixed = start(
        "tiny-cpu",
        "serving.context=600",
        "serving.pool=600",
        "schedule.prefill_chunk=64",
        "schedule.prefill_span=128",
        "schedule.on_demand_below=24",
        "hardware.cpu.memory=96MiB",
        change=unreserved,
    )
    draw = random.Random(9)
    waiting = list(range(NUM_REQUESTS))
    while waiting or not mixed.engine.idle:
        if waiting and draw.random() < 0.3:
            number = waiting.pop(0)
            mixed.add(number, prompts[number], outputs[number])
        mixed.engine.step()
    texts, stats = mixed.texts(), mixed.engine.stats()
    assert len(mixed.ends()) == NUM_REQUESTS
    assert stats.cached_tokens > 1_000 and stats.preemptions > 0 and stats.expert_misses > 0
    assert mixed.logs("decode 4 of 4") and mixed.logs("extend")
    spans = [line.split("prefill ")[1] for line in mixed.logs("prefill")]
    assert any(int(span.split()[0]) > 64 for span in spans), "no span of several chunks"
    assert any(", " in span for span in spans), "no span of several requests"
    assert any(admitted.resumed for admitted in mixed.admissions())
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    different = [number for number in range(NUM_REQUESTS) if texts[number] != cold[number]]
    for number in different:
        assert_near_tie(prompts[number], cold[number], texts[number], reference)
    assert len(different) <= NUM_REQUESTS // 20


def assert_near_tie(prompt: list[int], wanted: list[int], found: list[int], reference: Any) -> None:
    """Where two texts part, the two best tokens are closer than twice the tolerance."""
    at = next(i for i, (one, other) in enumerate(zip(wanted, found, strict=True)) if one != other)
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *wanted[:at]]])).logits[0, -1]
    best = logits.topk(2).values
    assert float(best[0] - best[1]) < 2 * max(1e-4, 2e-4 * float(logits.abs().max()))
