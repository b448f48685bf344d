"""The cache type, its page size and number format, with a reason each."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]


def test_a_hybrid_on_a_gpu_follows_the_checkpoint(plan_of: Plans) -> None:
    cache = plan_of("4090-qwen").kv_cache
    assert (cache.type, cache.page_size, cache.dtype) == ("hybrid_radix", 64, "fp8")
    assert cache.state_bytes_per_sequence == 64_389_120
    assert "the checkpoint declares keys and values in fp8, kept at scale 1.0" in cache.because


def test_a_cpu_keeps_everything_in_fp32(plan_of: Plans) -> None:
    cache = plan_of("tiny-cpu").kv_cache
    assert cache.dtype == "fp32"
    assert cache.bytes_per_token == 2 * 2 * 2 * 64 * 4
    assert cache.state_bytes_per_sequence == 6 * (512 * 3 + 8 * 32 * 32) * 4


def test_explicit_values_are_kept(plan_of: Plans) -> None:
    cache = plan_of("4090-qwen", "cache.page_size=32", "cache.kv_dtype=bf16").kv_cache
    assert (cache.page_size, cache.dtype) == (32, "bf16")
    assert "`cache.page_size` asks for 32" in cache.because
    assert "`cache.kv_dtype` asks for bf16" in cache.because


@pytest.mark.parametrize(
    ("profile", "dtype"), [("tiny-cpu", "fp8"), ("tiny-cpu", "bf16"), ("4090-qwen", "fp32")]
)
def test_a_format_without_a_kernel_is_refused(plan_of: Plans, profile: str, dtype: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of(profile, f"cache.kv_dtype={dtype}")
    (refusal,) = caught.value.refusals
    assert (refusal.field, refusal.code) == ("cache.kv_dtype", "no_kernel")
    assert caught.value.exit_code == 3
