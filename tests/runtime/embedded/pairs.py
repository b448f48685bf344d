"""transformers' model and an engine with the same weights, and how far their logits may be apart (D19)."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache


@dataclass(kw_only=True)
class Pair:
    """Pages and slots of the engine are dirty from the second prompt on."""

    model: Any  # a class of transformers
    running: Any  # the conftest's `Running`, which is no module
    own_difference: float
    """How far the model is from itself."""

    def excess(self, found: torch.Tensor, prompt: list[int], text: list[int]) -> float:
        """The largest difference as a multiple of the tolerance: at most 1 if all is well.

        `found`: logits after the prompt, and after each token of the text but the last.
        """
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *text[:-1]]])
            wanted = self.model(ids).logits[0, len(prompt) - 1 :]
        assert found.shape == wanted.shape
        largest = float(wanted.abs().max())
        tolerance = max(1e-4, 2e-4 * largest, 4 * self.own_difference)
        assert tolerance < 1e-2 * largest, "mistakes in the maths are 1e-1 and more"
        return float((found - wanted).abs().max()) / tolerance

    def excess_alone(self, request_id: int, prompt: list[int], steps: int) -> float:
        """Of a greedy request that nobody shares a step with."""
        found = self.running.logits_alone(request_id, prompt, 1 + steps)
        return self.excess(found, prompt, self.running.text(request_id))


def own_difference(model: Any, tokens: list[int]) -> float:
    """How far transformers is from itself between one pass and two halves."""
    ids, half = torch.tensor([tokens]), len(tokens) // 2
    with torch.inference_mode():
        whole = model(ids).logits[0, half:]
        cache = DynamicCache(config=model.config)
        model(ids[:, :half], use_cache=True, cache=cache)
        second = model(ids[:, half:], use_cache=True, cache=cache).logits[0]
    return float((whole - second).abs().max())


def random_tokens(count: int) -> list[int]:
    """Of the tiny models' vocabulary."""
    generator = torch.Generator().manual_seed(5)
    found: list[int] = torch.randint(0, 512, (count,), generator=generator).tolist()
    return found
