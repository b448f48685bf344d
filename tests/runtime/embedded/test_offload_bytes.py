"""What crosses the link, to the byte: a decode step, an extension, a span (D7, D8)."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import firmtoken.runtime.kernels.route.reference as route_module

SLOTS = "experts.slots=104"
"""The same residency in every plan here, whatever the chunk; 13 of 32 experts in each of 8 layers."""
MEMORY = "hardware.cpu.memory=160MiB"
LAYERS, EXPERTS = 8, 32


@pytest.fixture
def tokens() -> list[int]:
    draw = random.Random(3)
    return [draw.randrange(100, 4000) for _ in range(600)]


def moved(running: Any, program: str) -> int:
    return running.engine.stats().link_bytes[program]


def test_one_token_behind_a_cached_page_moves_what_a_decode_step_moves(
    start: Callable[..., Any], tokens: list[int]
) -> None:
    decoding = start("tiny-cpu", SLOTS, MEMORY)
    [first, _] = decoding.ask(tokens[:64], 2)
    assert decoding.logs("decode 1 of 1")
    extending = start("tiny-cpu", SLOTS, MEMORY)
    extending.ask(tokens[:65], 1)  # leaves 64 tokens cached and no expert admitted
    extending.ask([*tokens[:64], first], 1)
    assert extending.admissions()[-1].cached_tokens == 64
    assert len(extending.logs("extend 1 tokens")) == 1
    assert moved(extending, "extend") == moved(decoding, "decode") > 0


def test_a_span_moves_equal_bytes_in_one_two_or_three_chunks(
    start: Callable[..., Any], tokens: list[int]
) -> None:
    found = {}
    for chunk in (192, 128, 64):
        running = start(
            "tiny-cpu",
            SLOTS,
            MEMORY,
            f"schedule.prefill_chunk={chunk}",
            "schedule.prefill_span=384",
        )
        running.ask(tokens[:192], 1)
        assert len(running.logs("prefill 192 tokens")) == 1
        found[chunk] = moved(running, "prefill")
    missing = LAYERS * EXPERTS - 104
    assert set(found.values()) == {missing * running.plan.experts.slot_bytes}


@pytest.mark.parametrize("new", [1, 16, 51, 200])
def test_an_extension_moves_the_distinct_routed_misses_and_a_span_the_missing_bank_once(
    new: int, start: Callable[..., Any], tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    routed: list[set[int]] = []
    route = route_module.route

    def watched(batch: Any, *, ids: torch.Tensor, **rest: Any) -> None:
        route(batch, ids=ids, **rest)
        routed.append({int(expert) for expert in ids.flatten().tolist() if expert >= 0})

    monkeypatch.setattr(route_module, "route", watched)
    extending = start("tiny-cpu", SLOTS, MEMORY, "schedule.on_demand_below=300")
    # Each layer's range holds its first 13 experts, as filled before ready.
    extending.ask(tokens[:new], 1)
    assert len(extending.logs(f"extend {new} tokens")) == 1 and len(routed) == LAYERS
    misses = sum(len([expert for expert in layer if expert >= 13]) for layer in routed)
    slot_bytes = extending.plan.experts.slot_bytes
    assert moved(extending, "extend") == misses * slot_bytes > 0
    spanning = start("tiny-cpu", SLOTS, MEMORY, "schedule.on_demand_below=0")
    spanning.ask(tokens[:new], 1)
    assert moved(spanning, "prefill") == (LAYERS * EXPERTS - 104) * slot_bytes
    assert spanning.text(1_000_000) == extending.text(1_000_000)


def test_a_resident_plan_moves_nothing(start: Callable[..., Any], tokens: list[int]) -> None:
    running = start("tiny-cpu-resident")
    running.ask(tokens[:300], 5)
    assert running.engine.stats().link_bytes == {"decode": 0, "prefill": 0, "extend": 0}
