"""A model whose widths a kernel does not take is refused by the compiler, field and remedy named, not by an assert."""

import pytest

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.kernel_fitness import size_of
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

CASES = (
    ("model.geometry.moe_intermediate_size", 192, 256, "is a multiple of 128"),
    ("model.geometry.shared_intermediate_size", 320, 384, "is a multiple of 128"),
    ("model.geometry.hidden_size", 2080, 2176, "is a multiple of 128"),
    ("model.geometry.linear.key_head_dim", 96, 64, "is 16 or 32 or 64 or 128 or 256"),
    ("model.geometry.linear.value_head_dim", 96, 64, "is 32 or 64 or 128 or 256"),
)


def refusals(*overrides: str) -> tuple[Refusal, ...]:
    loaded = load_profile("h200-qwen", overrides)
    try:
        compile_profile(loaded.profile, CARDS)
    except PlanError as error:
        return error.refusals
    return ()


@pytest.mark.parametrize(("field", "wrong", "right", "remedy"), CASES)
def test_a_width_that_no_kernel_takes_is_refused_and_the_hint_is_true(
    field: str, wrong: int, right: int, remedy: str
) -> None:
    [refusal] = [one for one in refusals(f"{field}={wrong}") if one.code == "no_kernel"]
    assert refusal.field == field
    assert refusal.hint == f"serve a model whose `{field.removeprefix('model.geometry.')}` {remedy}"
    assert refusals(f"{field}={right}") == ()


def test_the_shipped_models_are_within_all_limits() -> None:
    for name in ("h200-qwen", "h200-minimax", "4090-qwen3-30b", "4090-ornith"):
        geometry = load_profile(name, ()).profile.model.geometry
        for card in CARDS:
            for limit in card.limits:
                found = size_of(limit, geometry)
                assert found is None or found % limit.multiple_of == 0
