"""Weights that are read wrong are stopped before ready: the perplexity of a known text gives them away."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.embedded.conftest import FOLDER, ROOT, Running
from tests.runtime.synthetic_models import overrides

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.placement import placement
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.cli.known_text import TOKENS, known_text
from firmtoken.runtime.cli.synth import synthesise
from firmtoken.runtime.engine.loading import inventory_of, load_weights
from firmtoken.runtime.engine.messages import KnownText
from firmtoken.runtime.engine.perplexity import read_perplexity
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.weights_check import WeightsReadWrong, check_weights
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.server.tokenizer import load_tokenizer
from firmtoken.runtime.weights.checkpoint import INDEX, MADE_UP
from firmtoken.runtime.weights.reader import Reader
from firmtoken.schema.load import load_profile

BOUND = 1.5
"""Of profiles/models/tiny-moe.yaml."""
WRONG = "weights are not read right: perplexity .* on the 512 tokens of the known text, at most 1.5 expected"
Start = Callable[..., Running]


@cache
def plan_of(profile: str, *sets: str) -> Plan:
    return compile_profile(load_profile(profile, sets).profile, CARDS)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """`start(profile, *sets, change=...)`: an engine with its weights; plans are compiled once."""
    running: list[Interpreter] = []

    def make(
        profile: str = "tiny-cpu-resident",
        *sets: str,
        change: Callable[[Plan], Plan] = lambda plan: plan,
    ) -> Running:
        plan = change(plan_of(profile, *sets))
        interpreter = Interpreter(plan, Arena(plan.spaces, {}))
        running.append(interpreter)
        load_weights(plan, interpreter, inventory_of(plan), lambda *_: None)
        return Running(plan, interpreter)

    yield make
    for interpreter in running:
        interpreter.close()


@pytest.fixture(scope="module")
def known() -> KnownText:
    """The embedded model's own text, remembered nowhere."""
    profile = load_profile("tiny-cpu").profile
    tokenizer = load_tokenizer(FOLDER, now=datetime.now).tokenizer
    found = known_text(profile.model.perplexity, tokenizer, {})
    assert found.most == BOUND and len(found.token_ids) == TOKENS
    return KnownText(token_ids=found.token_ids, counted=found.counted, most=BOUND, folder="")


def checked(running: Running, known: KnownText) -> str:
    return check_weights(running.plan, running.interpreter, inventory_of(running.plan), known)


def perplexity(running: Running, known: KnownText) -> float:
    return read_perplexity(running.plan, running.interpreter, known.token_ids, known.counted)


def test_it_is_what_transformers_computes(start: Start, known: KnownText, reference: Any) -> None:
    with torch.inference_mode():
        ids = torch.tensor(known.token_ids)
        logits = reference(ids[None]).logits[0, :-1].double()
    surprises = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")
    expected = math.exp(float(surprises[torch.tensor(known.counted[1:])].mean()))
    assert expected < 1.01
    assert perplexity(start(), known) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "sets",
    [
        ("tiny-cpu",),
        ("tiny-cpu", "schedule.prefill_chunk=128"),
        ("tiny-cpu", "schedule.prefill_span=192", "serving.requests=1"),
        ("tiny-cpu-resident", "schedule.prefill_chunk=64", "serving.requests=7"),
    ],
)
def test_it_does_not_depend_on_how_the_text_is_cut(
    start: Start, known: KnownText, sets: tuple[str, ...]
) -> None:
    assert perplexity(start(*sets), known) == pytest.approx(perplexity(start(), known), rel=1e-5)


def swapped(plan: Plan) -> Plan:
    gate, up, down = plan.experts.sources
    return replace(plan, experts=replace(plan.experts, sources=(up, gate, down)))


def without_the_one(plan: Plan) -> Plan:
    return replace(plan, weights=tuple(replace(row, add=0.0) for row in plan.weights))


def with_one_too_many(plan: Plan) -> Plan:
    """As if the norm inside the gated delta net were zero-centred too."""
    rows = (replace(row, add=1.0) if row.name == "gdn_norm" else row for row in plan.weights)
    return replace(plan, weights=tuple(rows))


@pytest.mark.parametrize("change", [swapped, without_the_one, with_one_too_many])
def test_a_mistake_of_reading_is_stopped(
    start: Start, known: KnownText, change: Callable[[Plan], Plan]
) -> None:
    with pytest.raises(WeightsReadWrong, match=WRONG):
        checked(start(change=change), known)


def test_globals_that_are_read_reciprocally_are_stopped(
    start: Start, known: KnownText, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_global = Reader.read_global
    monkeypatch.setattr(Reader, "read_global", lambda self, stored: 1 / read_global(self, stored))
    with pytest.raises(WeightsReadWrong, match=WRONG):
        checked(start(), known)


@pytest.mark.parametrize("layers", [range(8), range(1)], ids=["all", "one"])
def test_permuted_experts_are_stopped(start: Start, known: KnownText, layers: range) -> None:
    running = start()
    count = running.plan.experts.per_layer
    for layer in layers:
        slots = running.interpreter.views.experts.slots[layer * count : (layer + 1) * count]
        slots.copy_(slots.roll(1, dims=0))
    with pytest.raises(WeightsReadWrong, match=WRONG):
        checked(running, known)


def test_logits_that_are_no_numbers_are_stopped(start: Start, known: KnownText) -> None:
    running = start()
    norm = running.interpreter.views.weight("final_norm", 0)
    assert isinstance(norm, torch.Tensor)
    norm[3] = math.nan
    with pytest.raises(WeightsReadWrong, match=WRONG.replace(".*", "inf")):
        checked(running, known)


def test_requests_get_the_same_answers_afterwards(start: Start, known: KnownText) -> None:
    prompt = known.token_ids[:70]
    untouched, running = start("tiny-cpu"), start("tiny-cpu")
    checked(running, known)
    assert running.ask(prompt, 12) == untouched.ask(prompt, 12)


def test_what_was_read_is_remembered_for_these_files_and_this_plan(
    start: Start, known: KnownText, tmp_path: Path
) -> None:
    known = KnownText(
        token_ids=known.token_ids, counted=known.counted, most=BOUND, folder=str(tmp_path / "state")
    )

    def runs(running: Running) -> tuple[str, int]:
        launched = running.interpreter.record = []
        line = checked(running, known)
        running.interpreter.record = None
        return line, len(launched)

    running = start()
    first, launches = runs(running)
    assert launches and "(at most 1.5)" in first
    again, launches = runs(running)
    assert not launches and "(remembered)" in again
    _, launches = runs(start("tiny-cpu"))
    assert launches, "another plan has other sizes, and may have other kernels"
    for file in (tmp_path / "state").iterdir():
        file.write_text("[")
    _, launches = runs(running)
    assert launches, "what cannot be understood is not believed"
    _, launches = runs(running)
    assert not launches, "and is written anew"


def test_a_state_folder_that_cannot_be_written_only_costs_time(
    start: Start, known: KnownText, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    nowhere = KnownText(
        token_ids=known.token_ids,
        counted=known.counted,
        most=BOUND,
        folder=str(tmp_path / "file" / "x"),
    )
    assert "weights are read right" in checked(start(), nowhere)


def test_what_is_too_much_is_not_remembered(start: Start, known: KnownText, tmp_path: Path) -> None:
    strict = KnownText(
        token_ids=known.token_ids, counted=known.counted, most=1.0, folder=str(tmp_path)
    )
    running = start()
    for _ in range(2):
        with pytest.raises(WeightsReadWrong):
            checked(running, strict)
    assert not list(tmp_path.iterdir())


def test_synthetic_weights_are_not_asked(start: Start, known: KnownText) -> None:
    running = start("tiny-cpu", *overrides("qwen3_5_moe", "{synthetic: {seed: 1}}"))
    assert checked(running, known).startswith("perplexity not read: the weights are synthetic")


def test_a_folder_that_ft_synth_wrote_is_served_for_what_it_says_it_is(
    start: Start, known: KnownText, tmp_path: Path
) -> None:
    assert synthesise("tiny-cpu", str(tmp_path / "made"), (), seed=1) == 0
    running = start("tiny-cpu", f"model.source={{path: {tmp_path / 'made'}}}")
    assert checked(running, known).startswith("perplexity not read: the weights are synthetic")
    index = tmp_path / "made" / INDEX
    index.write_text(index.read_text().replace(f'"{MADE_UP}": true', f'"{MADE_UP}": 1'))
    with pytest.raises(WeightsReadWrong):
        checked(running, known)


def test_a_pool_without_room_for_the_text_is_not_asked(start: Start, known: KnownText) -> None:
    running = start("tiny-cpu", "serving.context=448", "serving.requests=1")
    assert "the pool holds fewer than the 512 tokens" in checked(running, known)
    assert "weights are read right" in checked(
        start("tiny-cpu", "serving.context=512", "serving.requests=1"), known
    )


@pytest.mark.parametrize("name", ["tiny-cpu", "tiny-cpu-resident", "4090-minimax", "h200-qwen"])
def test_no_plan_writes_over_hidden_states_before_they_are_asked_for(name: str) -> None:
    """The check reads them after `head` has run: nothing of the program's end may lie on them."""
    plan = plan_of(name)
    places = placement(plan.buffers, plan.model.layer_kinds)

    def bytes_of(value: Value) -> tuple[str, range]:
        offset, size = places.span(value)
        return places.buffer(value).space, range(offset, offset + size)

    [hidden] = [row for row in plan.buffers if row.name == "prefill.hid"]
    space, held = bytes_of(Value("prefill.hid", (0,) if hidden.index else ()))
    for other in ("prefill.last", "prefill.logits", "prefill.tokens"):
        other_space, taken = bytes_of(Value(other))
        assert other_space != space or taken.start >= held.stop or taken.stop <= held.start, other


def test_a_server_refuses_with_one_sentence(tmp_path: Path) -> None:
    """Through `ft run`: exit 1, the sentence and its hint last, and never `ready`."""
    command = [sys.executable, "-P", "-m", "firmtoken.runtime.cli.run", "run", "tiny-cpu"]
    command += ["--port", "0", "--set", "model.perplexity.max=1.0001"]
    environ = {"PYTHONPATH": str(ROOT / ".src"), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    assert done.returncode == 1
    sentence, hint = done.stderr.strip().splitlines()[-2:]
    assert sentence.startswith("weights are not read right: perplexity 1.0007 on the 512 tokens")
    assert "`model.perplexity.max`" in hint
    assert "ready" not in done.stdout
