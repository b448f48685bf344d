"""Batch limits by device, and what a profile may ask for."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.passes.bound_batches import graph_batch_sizes
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (5, (1, 2, 4, 5)), (16, (1, 2, 4, 8, 16))],
)
def test_graphs_are_captured_for_powers_of_two_and_the_limit(
    requests: int, sizes: tuple[int, ...]
) -> None:
    assert graph_batch_sizes(requests) == sizes


def test_a_chunk_is_two_numbers(plan_of: Plans) -> None:
    schedule = plan_of("4090-qwen").schedule
    assert (schedule.mixer_tile, schedule.moe_chunk) == (2_048, 8_192)


@pytest.mark.report(48)
def test_a_card_that_falls_off_the_bus_gets_small_chunks(plan_of: Plans) -> None:
    schedule = plan_of("4090-qwen", 'hardware.gpu.compute_capability="8.6"').schedule
    assert (schedule.mixer_tile, schedule.moe_chunk) == (2_048, 2_048)


@pytest.mark.report(48)
def test_an_asked_chunk_is_obeyed(plan_of: Plans) -> None:
    schedule = plan_of("tiny-cpu", "schedule.prefill_chunk=128").schedule
    assert (schedule.mixer_tile, schedule.moe_chunk) == (128, 128)


def test_no_chunk_is_longer_than_the_longest_prompt(plan_of: Plans) -> None:
    schedule = plan_of("tiny-cpu", "serving.context=100").schedule
    assert (schedule.mixer_tile, schedule.moe_chunk) == (128, 128)


def test_a_chunk_that_ends_between_gdn_chunks_is_refused(plan_of: Plans) -> None:
    with pytest.raises(PlanError, match="no multiple of 64") as caught:
        plan_of("tiny-cpu", "schedule.prefill_chunk=100")
    (refusal,) = caught.value.refusals
    assert refusal.field == "schedule.prefill_chunk"
    assert refusal.hint == "did you mean `128`?"
    assert caught.value.exit_code == 2
