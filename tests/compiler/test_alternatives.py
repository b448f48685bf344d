"""The four choices with what else was open: each price is what `--set` would really bring."""

import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from firmtoken.compiler.alternatives import Choice, choice_at, four_choices
from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.explanation import explanation
from firmtoken.compiler.figures import changes, figures
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.diagnostic import ProfileError
from firmtoken.schema.load import load_profile
from firmtoken.schema.profile import Profile

Plans = Callable[..., Plan]
Golden = Callable[[Path, str], None]
CASES = Path(__file__).parent / "cases"
PROFILES = Path(__file__).resolve().parents[2] / "profiles"
NAMES = ("4090-qwen", "pro6000-minimax", "tiny-cpu", "h200-minimax")


def profile_of(name: str, *overrides: str) -> Profile:
    return load_profile(str(PROFILES / f"{name}.yaml"), overrides).profile


@lru_cache
def choices_of(name: str, plan_of: Plans) -> dict[str, Choice]:
    choices = four_choices(profile_of(name), plan_of(name), CARDS)
    return {choice.name: choice for choice in choices}


def price(choice: Choice, wish: str) -> str:
    [found] = [each.price for each in choice.alternatives if each.set == wish]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_price_is_what_the_command_line_would_bring(plan_of: Plans, name: str) -> None:
    for choice in choices_of(name, plan_of).values():
        for alternative in choice.alternatives:
            try:
                then = plan_of(name, alternative.set)
            except (PlanError, ProfileError) as error:
                reason = alternative.price.removeprefix("refused: ")
                assert reason != alternative.price
                assert reason in str(error)
            else:
                assert not alternative.price.startswith("refused")
                assert ", ".join(changes(plan_of(name), then)) in alternative.price


@pytest.mark.parametrize("name", NAMES)
def test_there_are_four_choices_and_none_is_silent(plan_of: Plans, name: str) -> None:
    choices = choices_of(name, plan_of)
    assert list(choices) == ["kernels", "kv_cache", "streams", "memory"]
    assert all(choice.alternatives or choice.otherwise for choice in choices.values())


def test_one_stream_costs_first_words_where_experts_are_fetched(plan_of: Plans) -> None:
    streams = choices_of("pro6000-minimax", plan_of)["streams"]
    told = price(streams, "streams.layout=single")
    assert re.search(r"new prompt \S+ s -> \S+ s, next turn ", told)
    assert told.endswith("unchanged: decode")
    assert "the estimate sees no difference" in price(
        choices_of("4090-qwen", plan_of)["streams"], "streams.layout=single"
    )


def test_what_the_estimate_cannot_tell_is_said(plan_of: Plans) -> None:
    kernels = choices_of("pro6000-minimax", plan_of)["kernels"]
    assert "only a measurement could tell kernels apart" in kernels.because
    assert kernels.alternatives
    for alternative in kernels.alternatives:
        assert "decode" not in alternative.price.split("chosen is")[0]


def test_a_kernel_that_nothing_launches_yet_is_no_alternative_to_one_that_runs(
    plan_of: Plans,
) -> None:
    plan = plan_of("4090-qwen")
    (chosen,) = (row for row in plan.kernels if (row.op, row.phase) == ("attention", "prefill"))
    assert chosen.status == "ready"
    assert [row.kernel for row in chosen.rejected if row.usable] == ["flashinfer_fa2"]
    proposed = " ".join(
        each.set for each in choices_of("4090-qwen", plan_of)["kernels"].alternatives
    )
    assert "flashinfer" not in proposed


def test_a_refused_alternative_says_why_in_a_line(plan_of: Plans) -> None:
    assert price(
        choices_of("pro6000-minimax", plan_of)["memory"], "experts.placement=resident"
    ).startswith("refused: there is no room for all 15,872 experts: ")
    assert price(choices_of("4090-qwen", plan_of)["kv_cache"], "cache.type=radix") == (
        "refused: `radix` cannot restore the linear-attention layers of this model"
    )


def test_a_second_stream_that_would_idle_is_no_alternative(plan_of: Plans) -> None:
    streams = choices_of("h200-minimax", plan_of)["streams"]
    assert [each.set for each in streams.alternatives] == ["graphs=off"]
    asked = ("streams.layout=single",)
    plan, profile = plan_of("tiny-cpu", *asked), profile_of("tiny-cpu", *asked)
    back = choice_at("streams", profile, plan, CARDS)
    assert back is not None
    assert [each.set for each in back.alternatives] == ["streams.layout=auto"]
    assert re.search(r"new prompt \S+ s -> \S+ s", back.alternatives[0].price)


@pytest.mark.parametrize(
    ("path", "sets"),
    [
        ("kernels.attention.decode", ["kernels.attention=torch_sdpa"]),
        ("kernels.gdn", ["kernels.gdn.prefill=torch_recurrent"]),
        ("kernels.gdn.decode", []),
        ("streams", ["streams.layout=single"]),
        ("experts", ["experts.placement=resident", "serving.context=8k"]),
    ],
)
def test_a_path_shows_the_alternatives_of_its_choice(
    plan_of: Plans, path: str, sets: list[str]
) -> None:
    text = explanation(profile_of("tiny-cpu"), plan_of("tiny-cpu"), CARDS, path)
    assert text.startswith(path.split(".")[0])
    assert re.findall(r"--set (\S+)", text) == sets
    assert ("no alternative: " in text) == (not sets)


def test_a_path_below_a_choice_has_reasons_only(plan_of: Plans) -> None:
    text = explanation(profile_of("tiny-cpu"), plan_of("tiny-cpu"), CARDS, "context.effective")
    assert text == "context.effective = 16,384\n"


def test_figures_of_other_conversations_are_not_compared(plan_of: Plans) -> None:
    told = changes(plan_of("tiny-cpu"), plan_of("tiny-cpu", "serving.context=8k"))
    assert told[0] == "context 16,384 -> 8,192"
    assert not [each for each in told if each.startswith(("new prompt", "next turn", "agents"))]
    assert [figure.name for figure in figures(plan_of("tiny-cpu"))][:3] == [
        "context",
        "pool",
        "agents at once",
    ]


@pytest.mark.parametrize("name", ["4090-qwen", "pro6000-minimax", "tiny-cpu"])
def test_the_four_choices_are_the_golden_ones(plan_of: Plans, golden: Golden, name: str) -> None:
    plan = plan_of(name)
    text = explanation(profile_of(name), plan, CARDS).split("\nall reasons\n")[0]
    golden(CASES / f"{name}.explain.txt", text.replace(plan.fingerprint[:12], "FINGERPRINT"))
