"""Texts of the embedded model as plain fp32 torch computes them: logits, and what a GPU may choose otherwise.

A text is a question and the model's own greedy answer. Keys and values are rounded as the pages of a plan round them.
"""

import json
import runpy
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "profiles" / "weights" / "tiny-moe"
ANSWER = 24
TOGETHER = 5
"""Texts of one task of a pool."""
PAGES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """P tokens, L layers, E experts of each."""

    prompt: list[int]
    answer: list[int]
    logits: torch.Tensor
    """fp32 [1 + answer, V]: behind the prompt, and behind each token of the answer."""
    scores: torch.Tensor
    """fp32 [P, L, E]: the router's, of all experts."""
    pages: dict[int, torch.Tensor]
    """Of each attention layer fp32 [2, P, Hkv, D]: keys and values, rounded."""


def questions(count: int) -> list[list[int]]:
    """Token ids of what the model was trained to be asked."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    nouns = list(json.loads((FOLDER / "training" / "nouns.json").read_text()))[:count]
    return [
        tokenizer.encode(
            f"<|im_start|>user\nWhat does {noun} mean?<|im_end|>\n<|im_start|>assistant\n",
            add_special_tokens=False,
        ).ids
        for noun in nouns
    ]


def computed(pool: Executor, count: int, kv_dtype: str) -> Iterator[list[Text]]:
    """Begun at once, in parts."""
    prompts = questions(count)
    parts = [prompts[at : at + TOGETHER] for at in range(0, count, TOGETHER)]
    return pool.map(compute, parts, [kv_dtype] * len(parts))


def compute(prompts: list[list[int]], kv_dtype: str) -> list[Text]:
    """Some of the texts, on one processor: products this small gain nothing from a second."""
    torch.set_num_threads(1)
    loop = runpy.run_path(str(ROOT / "tests/runtime/plain_loop.py"))["PlainLoop"](
        FOLDER, kv_dtype=PAGES[kv_dtype]
    )
    router = watch_router(loop)
    return [_text(loop, router, prompt) for prompt in prompts]


def watch_router(loop: Any) -> list[torch.Tensor]:
    """Scores fp32 [E] of each layer of each step from now on."""
    scores: list[torch.Tensor] = []
    plain = type(loop)._experts

    def watched(own: dict[str, torch.Tensor], h: torch.Tensor) -> torch.Tensor:
        scores.append(own["mlp.gate"] @ h)
        return plain(loop, own, h)

    loop._experts = watched
    return scores


@torch.inference_mode()
def _text(loop: Any, router: list[torch.Tensor], prompt: list[int]) -> Text:
    loop.reset()
    router.clear()
    for token in prompt:
        logits = [loop.step(token).clone()]
    answer: list[int] = []
    for _ in range(ANSWER):
        answer.append(int(logits[-1].argmax()))
        logits.append(loop.step(answer[-1]).clone())
    return Text(
        prompt=prompt,
        answer=answer,
        logits=torch.stack(logits),
        scores=torch.stack(router).unflatten(0, (loop.length, -1)),
        pages={
            layer: torch.stack((keys, loop.values[layer]))[:, :, : loop.length].transpose(1, 2)
            for layer, keys in loop.keys.items()
        },
    )
