"""The tolerance of D19 catches what people get wrong in these families (facts/models.md 6.3 (8))."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.embedded.mistakes import MISTAKES, Mistake
from tests.runtime.embedded.pairs import Pair, own_difference, random_tokens
from tests.runtime.embedded.tiny_models import FAMILIES, tiny_model

from firmtoken.runtime.cli.profile import make_model_profile

TOKENS = random_tokens(130)
STEPS = 3


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Path, float]]:
    """Of each family a model, its model profile, and how far it is from itself."""
    found = {}
    for family in FAMILIES:
        folder, model = tmp_path_factory.mktemp(family), tiny_model(family)
        model.save_pretrained(folder / "checkpoint")
        file = folder / "model.yaml"
        assert make_model_profile(str(folder / "checkpoint"), output=str(file)) == 0
        found[family] = model, file, own_difference(model, TOKENS)
    return found


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda row: f"{row.family}: {row.name}")
def test_a_mistake_is_caught(
    mistake: Mistake,
    saved: dict[str, tuple[Any, Path, float]],
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, file, own = saved[mistake.family]
    running = start("tiny-cpu", f"model={file}", "serving.context=1k", change=mistake.change)
    if mistake.weights is not None:
        make_wrong(running, *mistake.weights)
    for patch in mistake.patches:
        monkeypatch.setattr(*patch)
    pair = Pair(model=model, running=running, own_difference=own)
    assert pair.excess_alone(1, TOKENS, STEPS) > 3


def make_wrong(running: Any, name: str, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    plan, views = running.plan, running.interpreter.views
    [weight] = [row for row in plan.weights if row.name == name]
    kinds = plan.model.layer_kinds
    count = len(kinds) if weight.axis == "layer" else kinds.count(weight.axis)
    with torch.inference_mode():
        for ordinal in range(count):
            rows = views.sections(weight, ordinal)["rows"]
            rows.copy_(wrong(rows.clone()))
