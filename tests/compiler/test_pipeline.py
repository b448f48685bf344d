"""What only the whole recipe shows: wishes that reach the programs, and refusals that need every pass."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmtoken.compiler.errors import PlanError, PlanRefused
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.verify import verify

PlanOf = Callable[..., Plan]


def test_graphs_off_reaches_the_decode_program(plan_of: PlanOf) -> None:
    assert plan_of("4090-qwen").programs.decode.captured
    assert not plan_of("4090-qwen", "graphs=off").programs.decode.captured
    assert not plan_of("tiny-cpu").programs.decode.captured


def test_without_a_prefix_cache_there_are_no_snapshots_and_no_park(plan_of: PlanOf) -> None:
    plan = plan_of("tiny-cpu", "cache.type=none")
    assert plan.programs.park is None and plan.kv_cache.snapshot_slots == 0
    assert "snaps" not in {row.name for row in plan.buffers}


def test_a_single_stream_has_no_events(plan_of: PlanOf) -> None:
    plan = plan_of("tiny-cpu", "streams.layout=single")
    assert plan.streams.names == ("main",) and plan.streams.edges == ()


def test_a_slot_format_comes_with_the_kernel_that_takes_it(plan_of: PlanOf) -> None:
    wish = "kernels={moe_gate_up: torch_nvfp4, moe_down: torch_nvfp4}"
    plan = plan_of("tiny-cpu", wish)
    assert plan.experts.format == "nvfp4"
    # 1.6875 bytes a weight pair of 256 x 128, three fp32 globals, padded to 256.
    assert plan.experts.slot_bytes == 55_552


def test_a_host_without_room_for_a_snapshot_loses_the_prefix_cache_with_a_warning(
    plan_of: PlanOf,
) -> None:
    plan = plan_of(
        "tiny-cpu-resident", "hardware.host.pinnable=1MiB", "hardware.host.memory=1025MiB"
    )
    assert plan.kv_cache.type == "none"
    (warning,) = plan.warnings
    assert warning.code == "no_prefix_cache"
    assert warning.hint.startswith("it takes `hardware.host.memory` of at least `1.01GiB`, or set")


def test_a_prefix_cache_asked_for_by_name_is_refused_there(plan_of: PlanOf) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(
            "tiny-cpu-resident",
            "cache.type=hybrid_radix",
            "hardware.host.pinnable=1MiB",
            "hardware.host.memory=1025MiB",
        )
    [refusal] = caught.value.refusals
    assert (refusal.code, refusal.field) == ("does_not_fit", "cache.type")
    assert "are needed, there are" in refusal.message
    assert refusal.hint.startswith("set `cache.type` to `auto`")


def test_a_span_shorter_than_a_page_is_refused(plan_of: PlanOf) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(
            "tiny-cpu",
            "cache.page_size=128",
            "schedule.prefill_chunk=64",
            "schedule.prefill_span=64",
        )
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("span", [64, 100, 512, 1000, 16000])
def test_any_span_of_a_page_or_more_is_served(span: int, plan_of: PlanOf) -> None:
    plan = plan_of("tiny-cpu", f"schedule.prefill_span={span}")
    assert plan.schedule.prefill_span == span and plan.schedule.moe_chunk < span + 64


@pytest.mark.parametrize("slots", [40, 3000, 5000])
def test_staging_holds_what_a_layer_may_miss(slots: int, plan_of: PlanOf) -> None:
    name = "tiny-cpu" if slots == 40 else "4090-qwen"
    plan = plan_of(name, "experts.placement=offload", f"experts.slots={slots}")
    assert plan.experts.slots == slots and plan.experts.ring == "whole"  # test_waves.py: the others
    missing = plan.experts.per_layer - min(plan.experts.slots_per_layer)
    assert plan.experts.staging_slots == 2 * missing


def test_staging_smaller_than_the_misses_is_refused(tiny_plan: Plan) -> None:
    experts = replace(tiny_plan.experts, staging_slots=tiny_plan.experts.staging_slots - 2)
    with pytest.raises(PlanRefused) as caught:
        verify(replace(tiny_plan, experts=experts))
    assert any("a half of the staging range holds 18" in fault for fault in caught.value.faults)


def test_a_kernel_that_ends_below_the_largest_launch_is_refused(tiny_plan: Plan) -> None:
    kernels = tuple(
        replace(row, sizes=(1, 64)) if row.op == "linear" else row for row in tiny_plan.kernels
    )
    with pytest.raises(PlanRefused, match="kernel `torch` of linear takes"):
        verify(replace(tiny_plan, kernels=kernels))


def test_fewer_requests_are_advised_where_states_take_the_room(plan_of: PlanOf) -> None:
    plan = plan_of("4090-qwen", "serving.requests=16", "serving.context=256k")
    assert any("serving.requests" in advice.set for advice in plan.advice)
