"""The engine's logits are transformers' on the dequantised weights, after prefill and at every decode step (D19)."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache

LENGTHS = (1, 63, 64, 65, 129, 300)
DECODE_STEPS = 12


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    generator = torch.Generator().manual_seed(5)
    return [int(t) for t in torch.randint(100, 4000, (max(LENGTHS),), generator=generator)]


@pytest.fixture(scope="module")
def own_difference(reference: Any, tokens: list[int]) -> float:
    """How far transformers is from itself between one pass and two halves, on the longest prompt."""
    ids, half = torch.tensor([tokens]), len(tokens) // 2
    with torch.inference_mode():
        whole = reference(ids).logits[0, half:]
        # One cache object for both halves; its keyword was renamed in transformers 5.24.
        known = inspect.signature(reference.forward).parameters
        cache = {
            "cache" if "cache" in known else "past_key_values": DynamicCache(
                config=reference.config
            )
        }
        reference(ids[:, :half], use_cache=True, **cache)
        second = reference(ids[:, half:], use_cache=True, **cache).logits[0]
    return float((whole - second).abs().max())


@pytest.fixture(scope="module")
def engines(start: Callable[..., Any]) -> dict[str, Any]:
    """One engine a profile, so that states and pages are dirty from the second length on."""
    return {profile: start(profile) for profile in ("tiny-cpu", "tiny-cpu-resident")}


@pytest.mark.report(58)
@pytest.mark.parametrize("profile", ["tiny-cpu", "tiny-cpu-resident"])
@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_the_reference(
    length: int,
    profile: str,
    engines: dict[str, Any],
    reference: Any,
    own_difference: float,
    tokens: list[int],
) -> None:
    running = engines[profile]
    found = running.logits_alone(length, tokens[:length], 1 + DECODE_STEPS)
    text = running.text(length)
    with torch.inference_mode():
        ids = torch.tensor([[*tokens[:length], *text[:-1]]])
        wanted = reference(ids).logits[0, length - 1 :]
    tolerance = max(1e-4, 2e-4 * float(wanted.abs().max()), 4 * own_difference)
    assert float((found - wanted).abs().max()) <= tolerance
    assert tolerance < 1e-2 * float(wanted.abs().max())
