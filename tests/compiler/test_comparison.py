"""Two plans in sentences: true numbers, and causes that point the way of the change."""

import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import pytest

from firmtoken.compiler.comparison import meaning
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]
PROFILES = Path(__file__).resolve().parents[2] / "profiles"
SHIPPED = sorted(path.stem for path in PROFILES.glob("*.yaml"))


def sentence(one: Plan, two: Plan, about: str) -> str:
    [found] = [each for each in meaning(one, two) if each.startswith(f"{about}: ")]
    return found


def test_context_and_requests_are_told_as_multiples(plan_of: Plans) -> None:
    one, two = plan_of("4090-qwen"), plan_of("4090-qwen", "serving.context=128k")
    assert sentence(one, two, "context") == (
        "context: the second holds 2.0 x the context of the first, 131,072 tokens a request"
    )
    one, two = plan_of("tiny-cpu"), plan_of("tiny-cpu-resident")
    assert sentence(one, two, "requests") == (
        "requests: all together hold 8.0 x as many tokens, 131,072 instead of 16,384: 4 agents with prompts of 6,600 "
        "run at once instead of 2"
    )


def test_fewer_experts_on_the_device_explain_slower_decode(plan_of: Plans) -> None:
    one, two = plan_of("pro6000-minimax"), plan_of("pro6000-minimax", "cache.kv_dtype=bf16")
    shares = [f"{100 * plan.experts.resident_fraction:.0f} %" for plan in (one, two)]
    slower = 100 * (1 - two.estimates.decode_tokens_per_s / one.estimates.decode_tokens_per_s)
    told = sentence(one, two, "decode")
    assert told.startswith(f"decode: the second writes {slower:.0f} % slower, ")
    assert f"because {shares[1]} instead of {shares[0]} of the experts are on the device" in told
    told = sentence(one, two, "experts")
    assert f"keeps {shares[1]} of them on the device instead of {shares[0]}, because keys" in told


def test_what_works_against_a_change_is_no_cause_of_it(plan_of: Plans) -> None:
    told = sentence(plan_of("4090-qwen"), plan_of("pro6000-minimax"), "decode")
    because, although = told.split(", although ")
    assert "slower" in because
    assert "GB/s" in although
    assert "GB/s" not in because
    back = sentence(plan_of("pro6000-minimax"), plan_of("4090-qwen"), "decode")
    because, although = back.split(", although ")
    assert "faster" in because
    assert "GB/s" in although


def test_graphs_and_streams_are_causes(plan_of: Plans) -> None:
    whole = plan_of("pro6000-minimax")
    eager = plan_of("pro6000-minimax", "graphs=off")
    assert "because its ops are launched one by one" in sentence(whole, eager, "decode")
    single = plan_of("pro6000-minimax", "streams.layout=single")
    assert "because experts are copied between compute" in sentence(whole, single, "prompts")


def test_equal_plans_are_said_to_be_equal(plan_of: Plans) -> None:
    plan = plan_of("tiny-cpu")
    for told in meaning(plan, plan):
        assert "both" in told
        assert "because" not in told
        assert "instead" not in told


@pytest.mark.parametrize("one", SHIPPED)
def test_every_pair_of_shipped_plans_has_sentences_with_true_directions(
    plan_of: Plans, one: str
) -> None:
    for first, second in permutations(SHIPPED, 2):
        if first != one:
            continue
        before, after = plan_of(first), plan_of(second)
        for about, number in (
            ("decode", "decode_tokens_per_s"),
            ("prompts", "prefill_tokens_per_s"),
        ):
            was, now = getattr(before.estimates, number), getattr(after.estimates, number)
            told = sentence(before, after, about)
            if "both" not in told.split(";")[0]:
                assert ("faster" in told) == (now > was)
                assert re.search(r", because ", told), told
