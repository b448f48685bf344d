"""What hazards do to whole plans: refuse, warn, set the engine's variables."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

Plans = Callable[..., Plan]
BUILT = "kernels={attention.prefill: flashinfer_fa2}"
"""A kernel that nvcc builds on the machine."""


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
    # Kernels when they are launched: the ledger has no room for all of torch's.
    common = {"CUDA_MODULE_LOADING": "LAZY"}
    # 8 MiB below capability 9.0, 32 MiB from there on: what the ledger charges.
    ada = common | {"CUBLAS_WORKSPACE_CONFIG": ":4096:2"}
    blackwell = common | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert plan_of("4090-qwen").environment == ada
    assert plan_of("5090-qwen").environment == blackwell
    # Built on the machine, so told for which card.
    assert plan_of("4090-qwen", BUILT).environment == ada | {"TVM_FFI_CUDA_ARCH_LIST": "8.9"}
    assert plan_of("5090-qwen", BUILT).environment == blackwell | {
        "TVM_FFI_CUDA_ARCH_LIST": "12.0",
        "FLASHINFER_CUDA_ARCH_LIST": "12.0f",
    }
    wide = plan_of("5090-qwen", BUILT, "cache.kv_dtype=bf16").environment
    assert wide == blackwell | {"TVM_FFI_CUDA_ARCH_LIST": "12.0"}
    assert plan_of("tiny-cpu").environment == {"OMP_WAIT_POLICY": "PASSIVE"}


def test_a_toolkit_of_another_cuda_matters_to_a_kernel_that_it_builds(plan_of: Plans) -> None:
    old = "hardware.software.nvcc=12.9"
    assert plan_of("4090-qwen", old).experts.placement == "resident"
    refusal = refused(plan_of, old, BUILT)
    assert (refusal.field, refusal.code) == ("kernels.attention.prefill", "hazard")
    assert refusal.message.startswith(
        "`flashinfer_fa2` cannot be used for `attention`: H-49 (nvcc of another major version)"
    )
    assert refusal.hint == "use `triton_prefill_fp8`"


def test_a_toolkit_of_another_cuda_is_refused_where_every_kernel_needs_it() -> None:
    built = tuple(card for card in CARDS if "triton_prefill" not in card.name)
    profile = load_profile("ft:4090-qwen", ("hardware.software.nvcc=12.9",)).profile
    with pytest.raises(PlanError) as caught:
        compile_profile(profile, built)
    (refusal,) = caught.value.refusals
    assert refusal.field == "hardware.software.nvcc"
    assert "`flashinfer_fa2`: H-49 (nvcc of another major version)" in refusal.message
    assert refusal.hint == "nvcc of the major version of `hardware.software.cuda`"
