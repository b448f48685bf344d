"""How far apart two tokens were where two answers part: a near tie (D19), or one of them is wrong.

Reads a JSON list of `{prompt: token ids, wanted, found}` from stdin and writes one of `{token, margin, tolerance}`. The
numbers are the plain loop's, which shares no code with the engine. A process of its own: the soak's clients live
without torch.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "profiles" / "weights" / "tiny-moe"
MOST_TOKENS = 1000
MOST_RANKS = 64


class SecondOpinion:
    """The plain loop, and the tokenizer of its texts."""

    def __init__(self, longest: int) -> None:
        path = ROOT / "tests" / "runtime" / "plain_loop.py"
        self._loop = runpy.run_path(str(path))["PlainLoop"](FOLDER, max_tokens=longest)
        self._tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))

    def parting(self, prompt: list[int], wanted: str, found: str) -> dict[str, Any]:
        """The margin between the two tokens at which the texts part; infinite where it finds none."""
        self._loop.reset()
        for token in prompt:
            logits = self._loop.step(token)
        tokens: list[int] = []
        for _ in range(MOST_TOKENS):
            best = logits.topk(MOST_RANKS).indices.tolist()
            one, other = (self._first_fit(tokens, best, text) for text in (wanted, found))
            if one is None or other is None:
                margin = float("inf")
                break
            if one != other:
                margin = abs(float(logits[one] - logits[other]))
                break
            tokens.append(one)
            logits = self._loop.step(one)
        else:
            margin = float("inf")
        tolerance = 2 * max(1e-4, 2e-4 * float(logits.abs().max()))
        return {"token": len(tokens), "margin": margin, "tolerance": tolerance}

    def _first_fit(self, tokens: list[int], best: list[int], text: str) -> int | None:
        """The likeliest token that the text goes on with; its end is a control token, which has no text."""
        so_far = self._shown(tokens)
        for token in best:
            longer = self._shown([*tokens, token])
            is_part = self._tokenizer.decode([*tokens, token]).endswith("\ufffd")
            if longer == so_far and (so_far == text or is_part):
                return token
            if longer != so_far and text.startswith(longer):
                return token
        return None

    def _shown(self, tokens: list[int]) -> str:
        # Half a character is not shown yet.
        return str(self._tokenizer.decode(tokens)).rstrip("\ufffd")


if __name__ == "__main__":
    torch.set_num_threads(1)
    differences = json.load(sys.stdin)
    opinion = SecondOpinion(2 * MOST_TOKENS + max(len(each["prompt"]) for each in differences))
    json.dump([opinion.parting(**each) for each in differences], sys.stdout)
