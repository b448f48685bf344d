"""What hazards do to whole plans: refuse, warn, set the engine's variables."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]


def refused(plan_of: Plans, *overrides: str) -> Refusal:
    with pytest.raises(PlanError) as caught:
        plan_of("4090-qwen", *overrides)
    assert caught.value.exit_code == 3
    (refusal,) = caught.value.refusals
    return refusal


def warned(plan: Plan) -> list[str]:
    return [row.message.split(" (")[0] for row in plan.warnings if row.code == "hazard"]


def test_a_driver_too_old_for_cuda_is_refused(plan_of: Plans) -> None:
    refusal = refused(plan_of, "hardware.software.driver=570.195")
    assert (refusal.field, refusal.code) == ("hardware.software.driver", "hazard")
    assert refusal.message == (
        "H-83 (CUDA from 13.0, driver before 580): nothing that was built for CUDA 13 loads with this driver"
    )
    assert refusal.hint == "a driver of 580 or later"


def test_banks_that_cannot_be_pinned_are_refused(plan_of: Plans) -> None:
    wsl = ("hardware.software.os=wsl", "hardware.host.pinnable=20GiB")
    refusal = refused(plan_of, *wsl, "hardware.host.banks=shared")
    assert (refusal.field, refusal.message[:4]) == ("hardware.host.banks", "H-63")
    assert warned(plan_of("4090-qwen", *wsl)) == []


def test_what_was_not_asked_for_is_a_warning(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen", "hardware.software.os=wsl", "hardware.software.driver=591.86")
    assert warned(plan) == ["H-60", "H-61"]
    assert [row.hint for row in plan.warnings][1] == "take another driver"


def test_a_chunk_above_a_cap_is_obeyed_with_a_warning(plan_of: Plans) -> None:
    plan = plan_of("3090-qwen", "schedule.prefill_chunk=8192")
    assert plan.schedule.moe_chunk == 8192
    (warning,) = plan.warnings
    assert warning.message.startswith(
        "`schedule.prefill_chunk` asks for 8,192 tokens, `auto` stops at 2,048: H-32 (compute capability 8.6)"
    )
    assert not plan_of("3090-qwen", "schedule.prefill_chunk=2048").warnings


def test_graphs_of_a_new_driver_are_warned_of_until_they_are_off(plan_of: Plans) -> None:
    new = "hardware.software.driver=610.43"
    assert warned(plan_of("5090-qwen", new)) == ["H-42"]
    assert warned(plan_of("5090-qwen", new, "graphs=off")) == []
    assert warned(plan_of("4090-qwen", new)) == []


def test_the_engine_gets_the_variables_of_the_kernels_in_the_plan(plan_of: Plans) -> None:
    common = {"CUDA_MODULE_LOADING": "EAGER", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    ada = plan_of("4090-qwen").environment
    # 8 MiB below capability 9.0, 32 MiB from there on: what the ledger charges.
    assert ada == common | {
        "TVM_FFI_CUDA_ARCH_LIST": "8.9",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:2",
    }
    blackwell = plan_of("5090-qwen").environment
    assert blackwell == common | {
        "TVM_FFI_CUDA_ARCH_LIST": "12.0",
        "FLASHINFER_CUDA_ARCH_LIST": "12.0f",
    }
    assert (
        "FLASHINFER_CUDA_ARCH_LIST" not in plan_of("5090-qwen", "cache.kv_dtype=bf16").environment
    )
    assert "TVM_FFI_CUDA_ARCH_LIST" not in plan_of("tiny-cpu").environment


def test_a_toolkit_of_another_cuda_is_refused_with_the_kernel_that_needs_it(plan_of: Plans) -> None:
    refusal = refused(plan_of, "hardware.software.nvcc=12.9")
    assert refusal.field == "hardware.software.nvcc"
    assert "`flashinfer_fa2`: H-49 (nvcc of another major version)" in refusal.message
