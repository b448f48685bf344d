"""A checkpoint of each family as transformers saves it, through profile, plan and load: transformers' logits (D19)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime.embedded.pairs import Pair, own_difference, random_tokens
from tests.runtime.embedded.tiny_models import FAMILIES, tiny_model

from firmtoken.compiler.program import Value
from firmtoken.runtime.cli.profile import make_model_profile

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 300)
DECODE_STEPS = 40
STATES = ("conv_state", "recurrent_state")
TOKENS = random_tokens(max(LENGTHS))


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A family's model, and the model profile that `ft profile model` writes of its checkpoint."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny_model(request.param)
    model.save_pretrained(folder / "checkpoint")
    assert make_model_profile(str(folder / "checkpoint"), output=str(folder / "model.yaml")) == 0
    return model, folder / "model.yaml"


@pytest.fixture(scope="module", params=["auto", "10"], ids=["resident", "offloaded"])
def pair(request: pytest.FixtureRequest, saved: Any, start: Callable[..., Any]) -> Pair:
    model, file = saved
    slots = f"experts.slots={request.param}"
    running = start("tiny-cpu", f"model={file}", slots, "serving.context=1k")
    placement = "resident" if request.param == "auto" else "offload"
    assert running.plan.experts.placement == placement
    return Pair(model=model, running=running, own_difference=own_difference(model, TOKENS))


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_transformers(pair: Pair, length: int) -> None:
    assert pair.excess_alone(length, TOKENS[:length], DECODE_STEPS) <= 1


def test_logits_of_unequal_lengths_in_one_batch_equal_transformers(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, engine = pair.running, pair.running.engine
    logits: dict[int, list[torch.Tensor]] = {}
    sizes = set()
    run = engine._run_decode

    def run_and_keep(decode: Any) -> None:
        run(decode)
        rows = running.interpreter.views.tensor(Value("decode.logits"))
        for row, sequence in enumerate(decode.sequences):
            logits.setdefault(sequence.request_id, []).append(rows[row].clone())
        sizes.add(len(decode.sequences))

    monkeypatch.setattr(engine, "_run_decode", run_and_keep)
    running.messages.clear()
    prompts = {500 + length: TOKENS[-length:] for length in (1, 65, 130, 299)}
    for request_id, prompt in prompts.items():
        running.add(request_id, prompt, 13)
    running.drain()
    assert 4 in sizes
    texts = running.texts()
    for request_id, prompt in prompts.items():
        text = texts[request_id]
        found = torch.stack(logits[request_id])
        assert pair.excess(found, [*prompt, text[0]], text[1:]) <= 1


def test_what_an_earlier_request_left_in_slots_and_pages_changes_nothing(pair: Pair) -> None:
    running = pair.running
    views, kinds = running.interpreter.views, running.plan.model.layer_kinds
    with torch.inference_mode():
        for layer, kind in enumerate(kinds):
            for name in STATES if kind == "linear" else ("kv",):
                views.tensor(Value(name, (layer, 0))).fill_(3.0)
    # Not the beginning of an earlier prompt: the prefix cache has pages of those.
    assert pair.excess_alone(900, TOKENS[100:170], 5) <= 1
