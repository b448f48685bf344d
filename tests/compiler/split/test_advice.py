"""Advice over hand-made models: FP8 keys are offered before experts, context or requests are given up."""

from collections.abc import Callable

from firmtoken.compiler.facts import Split
from firmtoken.compiler.passes.advise import advise
from firmtoken.compiler.plan import Advice
from firmtoken.schema.profile import Profile

Advisor = Callable[..., tuple[Advice, ...]]


def test_fp8_keys_come_first(
    split_any: Callable[..., Split],
    make_profile: Callable[..., Profile],
    qwen_with: Callable[..., object],
) -> None:
    profile = make_profile("cache.kv_dtype=bf16", "serving.context=256k")
    case = qwen_with()
    splits: list[Profile] = []

    def replan(changed: Profile) -> Split:
        splits.append(changed)
        return split_any(case, changed)

    found = advise(profile, replan)
    assert [advice.set for advice in found][:2] == [
        "cache.kv_dtype=fp8",
        "serving.context=128k",
    ]
    assert "experts 83 % -> 100 %" in found[0].gain or "experts" in found[0].gain
    assert len(splits) <= 5
