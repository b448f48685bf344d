"""Logits that are no numbers end their request, and nothing of it in pages, states or slots reaches another one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from firmtoken.compiler.faults import Fault
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.loading import fill_slots
from firmtoken.runtime.engine.messages import Admitted

Prompt = Callable[..., list[int]]
NEVER = 10**9
PLACES = (
    ("embed", "prefill", None),
    ("gdn", "prefill", 1),
    ("qk_norm_rope_kv", "prefill", 3),
    ("fetch", "prefill", 2),
    ("gdn", "decode", 6),
    ("qk_norm_rope_kv", "decode", 7),
    ("attention", "decode", 3),
    ("moe_down", "decode", 0),
    ("fetch", "decode", None),
)


@dataclass(slots=True, kw_only=True)
class Scene:
    """An engine in which a launch of any of `PLACES` can be made to write NaN, and undisturbed texts."""

    bench: Any  # the conftest's Bench
    prompts: dict[int, list[int]]
    texts: dict[int, list[int]]

    def corrupt(self, place: int) -> None:
        """The next launch there."""
        self.bench.interpreter.faults._num_launches[place] = NEVER - 1

    def add(self, request_id: int) -> None:
        self.bench.add(request_id, self.prompts[request_id % 10], 6)

    def right(self, request_id: int) -> bool:
        return self.bench.text(request_id) == self.texts[request_id % 10]


def with_faults(plan: Plan) -> Plan:
    faults = tuple(
        Fault(kind="corrupt", op=op, program=program, layer=layer, step=NEVER)
        for op, program, layer in PLACES
    )
    return replace(plan, faults=faults)


@pytest.fixture(scope="module")
def scene(start_for_module, prompt: Prompt) -> Scene:
    bench = start_for_module("tiny-cpu", "serving.context=512", change=with_faults)
    prompts = {1: prompt(70, 1), 2: prompt(90, 2), 4: prompt(20, 4)}
    texts = {who: bench.ask(text, 6) for who, text in prompts.items()}
    return Scene(bench=bench, prompts=prompts, texts=texts)


@pytest.mark.report(14)
@pytest.mark.parametrize("place", range(len(PLACES)), ids=[f"{p[1]}-{p[0]}" for p in PLACES])
def test_a_request_with_strange_logits_ends_and_leaves_nothing_behind(
    scene: Scene, place: int
) -> None:
    bench, first = scene.bench, 1000 + 100 * place
    bench.engine.scheduler.holdings.retire_cache()  # cold, and the experts too
    fill_slots(bench.plan, bench.interpreter.views)
    scene.add(first + 2)
    for _ in range(3):
        bench.engine.step()
    in_decode = PLACES[place][1] == "decode"
    if in_decode:  # who runs beside it is in another batch
        bench.drain()
    scene.add(first + 1)
    if in_decode:
        bench.engine.step()
    scene.corrupt(place)
    bench.drain()
    end = bench.end(first + 1)
    position = 70 + len(bench.text(first + 1))
    assert (end.reason, end.message) == ("error", f"the logits of token {position} are not finite")
    assert all(token >= 0 for token in bench.text(first + 1))
    assert scene.right(first + 2) and bench.end(first + 2).reason == "length"
    stats = bench.engine.stats()
    assert stats.pages_free == stats.pages_total and stats.pages_cached == 0
    # Four at once use every state slot and the pages that came back last, each page to a part; then the same prompt.
    for wave in ((14, 24, 34, 44), (11,)):
        for who in wave:
            scene.add(first + who)
        bench.drain()
        assert all(scene.right(first + who) for who in wave)
    found = [m for m in bench.messages if isinstance(m, Admitted) and m.request_id == first + 11]
    assert found[0].cached_tokens == 0


def test_a_prompt_that_goes_wrong_in_its_first_span_ends_there(start, prompt: Prompt) -> None:
    fault = Fault(kind="corrupt", op="gdn", program="prefill", layer=2)
    bench = start(
        "tiny-cpu",
        "schedule.prefill_chunk=128",
        "schedule.prefill_span=128",
        "serving.context=512",
        change=lambda plan: replace(plan, faults=(fault,)),
    )
    bench.add(1, prompt(400), 4)
    bench.drain()
    assert bench.end(1).message == "the logits of token 128 are not finite"
    assert bench.engine.steps == 1 and bench.engine.stats().pages_cached == 0


def test_only_the_row_that_is_not_finite_ends(start, prompt: Prompt, monkeypatch) -> None:
    bench = start("tiny-cpu-resident", "serving.context=512")
    for request_id in (1, 2, 3):
        bench.add(request_id, prompt(40, request_id), 6)
    bench.engine.step()
    sample = bench.interpreter._kernels._loaded["firmtoken.runtime.kernels.sample.reference:sample"]
    lone = start("tiny-cpu-resident", "serving.context=512")

    def spoil(batch: object, *, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        logits[1, 5] = torch.nan
        sample(batch, logits=logits, tokens=tokens)

    entry = "firmtoken.runtime.kernels.sample.reference:sample"
    with monkeypatch.context() as patch:
        patch.setitem(bench.interpreter._kernels._loaded, entry, spoil)
        bench.engine.step()
    assert bench.end(2).message == "the logits of token 41 are not finite"
    assert torch.isnan(bench.interpreter.views.tensor(Value("decode.logits"))[1]).any()
    bench.interpreter._sized.clear()  # what is bound calls the spoilt one
    bench.drain()
    for request_id in (1, 3):
        assert bench.text(request_id) == lone.ask(prompt(40, request_id), 6)
