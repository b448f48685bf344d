"""Numbers by which the engine schedules."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]


def test_an_offloaded_plan_runs_layer_by_layer(plan_of: Plans) -> None:
    schedule = plan_of("tiny-cpu").schedule
    assert schedule.order == "layer"
    assert 0 < schedule.on_demand_below.cold <= schedule.on_demand_below.warm


def test_a_resident_plan_runs_chunk_by_chunk_and_never_on_demand(plan_of: Plans) -> None:
    schedule = plan_of("tiny-cpu-resident").schedule
    assert schedule.order == "chunk"
    assert (schedule.on_demand_below.cold, schedule.on_demand_below.warm) == (0, 0)


def test_warmth_matters_more_than_anything(plan_of: Plans) -> None:
    schedule = plan_of("4090-qwen", "hardware.gpu.memory=16GiB").schedule
    assert 20 < schedule.on_demand_below.cold < 150
    assert schedule.on_demand_below.warm > 3 * schedule.on_demand_below.cold


def test_an_asked_threshold_sets_both(plan_of: Plans) -> None:
    below = plan_of("tiny-cpu", "schedule.on_demand_below=17").schedule.on_demand_below
    assert (below.cold, below.warm) == (17, 17)


def test_on_demand_takes_one_tile_at_most(plan_of: Plans) -> None:
    assert plan_of("tiny-cpu", "schedule.on_demand_below=513").schedule.on_demand_below.cold == 513
    with pytest.raises(PlanError, match="one mixer tile of 512 tokens at most") as caught:
        plan_of("tiny-cpu", "schedule.on_demand_below=514")
    assert caught.value.exit_code == 2
    # Said before memory is weighed: whoever mends that must not meet this next.
    with pytest.raises(PlanError, match="one mixer tile of 512 tokens at most"):
        plan_of("tiny-cpu", "schedule.on_demand_below=514", "hardware.cpu.memory=30MiB")


def test_deadlines_have_floors_and_are_tenfold_on_a_cpu(plan_of: Plans) -> None:
    gpu = plan_of("4090-qwen").schedule.deadlines
    assert (gpu.decode_s, gpu.prefill_layer_s) == (2.0, 5.0)
    cpu = plan_of("tiny-cpu").schedule.deadlines
    assert cpu.decode_s >= 20.0
    assert cpu.prefill_layer_s >= 50.0


def test_an_asked_deadline_is_obeyed(plan_of: Plans) -> None:
    deadlines = plan_of("tiny-cpu", "schedule.step_deadline=7s").schedule.deadlines
    assert (deadlines.decode_s, deadlines.prefill_layer_s) == (7.0, 7.0)


def test_decode_runs_at_least_once_a_unit(plan_of: Plans) -> None:
    slow = plan_of("tiny-cpu", "hardware.cpu.flops=1GFLOPS").schedule
    assert slow.decode_every_units == 1
    assert plan_of("4090-qwen").schedule.decode_every_units > 1
