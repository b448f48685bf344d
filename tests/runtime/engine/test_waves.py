"""A layer's misses in waves through a small ring: the numbers, the bytes and the launches of staging them at once."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from firmtoken.compiler import fits, slot_split
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep, Value
from firmtoken.compiler.unroll import unroll
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

Prompt = Callable[..., list[int]]
LENGTHS = (1, 63, 64, 129, 300)
SLOTS, ROOM = "experts.slots=104", "hardware.cpu.memory=160MiB"
"""13 of 32 experts in each of 8 layers, so 19 are missing."""
RINGS = {2: 20, 4: 10, 6: 8}
"""Waves -> slots of the ring that make it so many."""
ON_DEMAND, STREAM = "schedule.on_demand_below=400", "schedule.on_demand_below=0"


@pytest.fixture
def in_waves(start, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`in_waves(4, *overrides)`: the embedded model, too small for waves to pay, with limits at which they do."""

    def make(waves: int, *overrides: str, change: Callable[[Plan], Plan] = lambda plan: plan):
        with monkeypatch.context() as patched:
            patched.setattr(slot_split, "STAGING_SLOTS", 1)
            patched.setattr(slot_split, "RING_SLOTS", RINGS[waves])
            patched.setattr(fits, "HIDDEN_SHARE", 0.0)
            whole = load_profile("ft:tiny-cpu", (SLOTS, ROOM, *overrides)).profile
            plan = compile_profile(whole, CARDS)
            # One slot less than staging at once takes.
            memory = plan.memory.device.total - plan.experts.slot_bytes
            less = f"hardware.cpu.memory={memory}B"
            bench = start("tiny-cpu", SLOTS, less, *overrides, change=change)
        assert bench.plan.experts.ring == "waves"
        assert bench.plan.programs.prefill.bounds["waves"] == waves
        assert bench.plan.experts.staging_slots == RINGS[waves]
        return bench

    return make


def logits(bench: Any, program: str) -> torch.Tensor:
    return bench.interpreter.views.tensor(Value(f"{program}.logits"))[:1].clone()


@pytest.mark.parametrize("waves", RINGS)
@pytest.mark.parametrize("program", ["prefill", "extend"])
def test_waves_give_the_logits_bytes_and_texts_of_staging_all_at_once(
    start, prompt: Prompt, in_waves: Callable[..., Any], waves: int, program: str
) -> None:
    below = STREAM if program == "prefill" else ON_DEMAND
    whole, wave = start("tiny-cpu", SLOTS, ROOM, below), in_waves(waves, below)
    resident = start("tiny-cpu-resident")
    assert whole.plan.experts.ring == "whole"
    for length in LENGTHS:
        texts = [bench.ask(prompt(length, length), 6) for bench in (whole, wave, resident)]
        assert texts[0] == texts[1] == texts[2]
        # Each expert's rows are multiplied together in one wave, and summed after the last: not a bit differs.
        assert torch.equal(logits(whole, program), logits(wave, program))
        torch.testing.assert_close(
            logits(wave, program), logits(resident, "prefill"), rtol=0, atol=1e-4
        )
        assert wave.engine.stats().link_bytes == whole.engine.stats().link_bytes
    assert wave.logs(f"{program} 300 tokens")
    assert wave.engine.stats().link_bytes[program] > 0


@pytest.mark.parametrize("waves", RINGS)
def test_a_span_is_one_chunk_and_each_streams_the_missing_bank_once(
    prompt: Prompt, in_waves: Callable[..., Any], waves: int
) -> None:
    bench = in_waves(waves, STREAM, "schedule.prefill_chunk=128")
    assert bench.plan.schedule.prefill_span == 128
    bench.ask(prompt(300), 1)
    missing = 8 * 32 - 104
    assert bench.engine.stats().link_bytes["prefill"] == 3 * missing * bench.plan.experts.slot_bytes


@pytest.mark.parametrize("waves", RINGS)
def test_what_is_launched_equals_the_unrolled_programs(
    prompt: Prompt, in_waves: Callable[..., Any], waves: int
) -> None:
    bench = in_waves(waves, ON_DEMAND)
    bench.interpreter.record = record = []
    for length, program in ((300, "extend"), (450, "prefill")):
        bench.add(length, prompt(length, length), 1)
        bench.engine.step()
        planned = [
            (program, item.step.op, item.step.stream, item.waits)
            for item in unroll(
                getattr(bench.plan.programs, program), bench.plan.model.layer_kinds, tiles=(1,)
            )
            if isinstance(item, BoundStep)
        ]
        found = [(row.program, row.op, row.stream, row.waits) for row in record]
        assert found[: len(planned)] == planned
        fetches = [row for row in planned if row[1] == "fetch"]
        assert len(fetches) == 8 * waves
        record.clear()
        bench.drain()
        record.clear()


def busy(bench: Any, prompt: Prompt) -> tuple[list[int], list[int]]:
    """A stream that decodes at every yield of another one's prompt."""
    bench.add(1, prompt(50, 1), 60)
    bench.engine.step()
    bench.add(2, prompt(500, 2), 5)
    bench.drain()
    return bench.text(1), bench.text(2)


def often(plan: Plan) -> Plan:
    return replace(plan, schedule=replace(plan.schedule, decode_every_units=1))


@pytest.mark.parametrize("waves", RINGS)
def test_decode_steps_between_the_layers_change_nothing(
    start, prompt: Prompt, in_waves: Callable[..., Any], waves: int
) -> None:
    chunk = "schedule.prefill_chunk=128"
    resident = start("tiny-cpu-resident", chunk, change=often)
    found = busy(in_waves(waves, STREAM, chunk, change=often), prompt)
    assert found == busy(resident, prompt)


def test_a_wave_that_forgets_what_the_cache_holds_is_noticed(
    start, prompt: Prompt, in_waves: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("firmtoken.runtime.kernels.resolve.reference")
    original = module.resolve

    def forgets(batch, *, table, map, wave, **operands) -> None:  # noqa: A002  as the operand
        original(batch, table=table, map=map, wave=wave, **operands)
        if wave == 0:
            map[table >= 0] = -1

    right = start("tiny-cpu", SLOTS, ROOM, STREAM).ask(prompt(300), 6)
    monkeypatch.setattr(module, "resolve", forgets)
    assert in_waves(4, STREAM).ask(prompt(300), 6) != right


def test_one_wave_fewer_than_there_are_misses_is_noticed(
    start, prompt: Prompt, in_waves: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = start("tiny-cpu", SLOTS, ROOM, STREAM).ask(prompt(300), 6)
    bench = in_waves(4, STREAM)
    flat = bench.interpreter._unroll

    def short(name: str, tiles: tuple[int, ...]):
        return tuple(item for item in flat(name, tiles) if item.at.get("w", 0) < 3)

    monkeypatch.setattr(bench.interpreter, "_unroll", short)
    assert bench.ask(prompt(300), 6) != right
