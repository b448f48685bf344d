"""Synthetic weights through the real pipeline: every family serves, stays finite, spreads its routes."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
import torch
from tests.runtime.embedded.conftest import Running
from tests.runtime.synthetic_models import FAMILIES, overrides

from firmtoken.compiler.prescribed_routes import CONVERSATION, ROUTES
from firmtoken.compiler.program import Value
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.moe_gate_up import torch_gather, torch_grouped
from firmtoken.runtime.kernels.prescribe import reference

SYNTHETIC = "{synthetic: {seed: 4}}"
PRESCRIBED = "{synthetic: {seed: 4, routes: q36}}"
Start = Callable[..., Running]


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Experts that gate and up were launched with, of resident engines started afterwards."""
    seen: list[torch.Tensor] = []
    for module, name in ((torch_grouped, "moe_gate_up"), (torch_gather, "moe_gate_up")):
        launch = getattr(module, name)

        def spy(batch: Batch, *, launch: Any = launch, **operands: Any) -> None:
            seen.append(operands["ids"].clone())
            launch(batch, **operands)

        monkeypatch.setattr(module, name, spy)
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_stays_finite_and_spreads_its_routes(
    family: str, start: Start, routed: list[torch.Tensor]
) -> None:
    running = start("tiny-cpu-resident", *overrides(family, SYNTHETIC), "serving.context=1k")
    running.ask([7 * token % 500 for token in range(200)], 2)
    logits = running.logits_of("decode")
    assert logits.isfinite().all()
    # Wider than a die, far from a certainty: `lm_head` has a gain of 3.
    assert 1.5 < float(logits.std()) < 6
    num_experts = running.plan.experts.per_layer
    prefill = [ids for ids in routed if len(ids) == 200]
    assert len(prefill) == len(running.plan.model.layer_kinds)
    for ids in prefill:
        shares = torch.bincount(ids.flatten(), minlength=num_experts) / ids.numel()
        assert float(shares.max()) < 6 / num_experts


@pytest.mark.parametrize("family", FAMILIES)
def test_offloaded_equals_resident(family: str, start: Start) -> None:
    prompt = [11 * token % 500 for token in range(70)]
    chosen = overrides(family, SYNTHETIC)
    resident = start("tiny-cpu-resident", *chosen, "serving.context=1k")
    offloaded = start("tiny-cpu", *chosen, "serving.context=1k", "experts.slots=10")
    assert offloaded.plan.experts.placement == "offload"
    assert offloaded.ask(prompt, 20) == resident.ask(prompt, 20)


def test_prescribed_experts_are_those_that_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By position in every layer; sequence s of a decode step reads conversation s."""
    seen: list[tuple[list[int], torch.Tensor]] = []
    prescribe = reference.prescribe

    def spy(batch: Batch, **operands: Any) -> None:
        prescribe(batch, **operands)
        seen.append((batch.positions.tolist(), operands["ids"].clone()))

    monkeypatch.setattr(reference, "prescribe", spy)
    running = start("tiny-cpu", *overrides("qwen3_5_moe", PRESCRIBED))
    tables = [running.interpreter.views.weight(ROUTES, layer) for layer in range(8)]
    running.ask(list(range(40)), 2)
    for layer, (positions, ids) in enumerate(seen[:8]):
        assert torch.equal(ids, tables[layer][positions])
    seen.clear()
    for request_id in (1, 2):
        running.add(request_id, [request_id] * 30, 3)
    running.drain()
    together = [(positions, ids) for positions, ids in seen if len(positions) == 2][-8:]
    assert len(together) == 8
    for layer, (positions, ids) in enumerate(together):
        rows = [position + s * CONVERSATION for s, position in enumerate(positions)]
        assert torch.equal(ids, tables[layer][rows])


def test_prescribed_experts_are_found_as_often_as_a_real_router_s(start: Start) -> None:
    """Hits of the engine's own counters: the random router of the same weights is far below."""

    def hits(source: str) -> float:
        running = start("tiny-cpu", *overrides("qwen3_5_moe", source), "experts.slots=80")
        running.ask([5 * token % 4000 for token in range(30)], 200)
        stats = running.engine.stats()
        return stats.expert_hits / (stats.expert_hits + stats.expert_misses)

    assert hits(PRESCRIBED) > hits(SYNTHETIC) + 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_served_like_any_checkpoint(family: str, serve: Callable[..., Any]) -> None:
    """Tokenizer, template and defaults come with the weights; the log says that no text means anything."""
    with serve("tiny-cpu", *overrides(family, SYNTHETIC), "serving.context=1k") as address:
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "seed": 1}
        answer = httpx.post(f"{address}/v1/chat/completions", json=asked, timeout=60).json()
        assert answer["usage"]["completion_tokens"] == 8
        words = {"prompt": " a b c", "max_tokens": 8, "seed": 1}
        written = httpx.post(f"{address}/v1/completions", json=words, timeout=60).json()
        assert written["choices"][0]["text"]


def test_finite_after_the_longest_prompt(start: Start) -> None:
    running = start("tiny-cpu", *overrides("qwen3_5_moe", SYNTHETIC), "serving.context=4k")
    running.ask([3 * token % 4000 for token in range(3000)], 2)
    logits = running.interpreter.views.tensor(Value("decode.logits"))
    assert logits.isfinite().all()
