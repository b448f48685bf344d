"""The plan's estimates beside what was measured at the same points, on the one GPU that there was."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.bench.estimates import PlanEstimates
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

ROOT = Path(__file__).resolve().parents[3]
MEASURED = yaml.safe_load((Path(__file__).parent / "cases" / "measured-h200-qwen.yaml").read_text())
POINTS = MEASURED["points"]
TOLERANCE = 0.25
MS = 1e3


@lru_cache(maxsize=1)
def estimates() -> PlanEstimates:
    loaded = load_profile(str(ROOT / MEASURED["profile"]), ())
    return PlanEstimates(loaded.profile, compile_profile(loaded.profile, CARDS))


def named(point: dict[str, Any]) -> str:
    return " ".join(str(value) for value in point.values())


def beside(point: dict[str, Any]) -> tuple[float, float]:
    """Measured and predicted, in the point's own unit."""
    if point["what"] == "first token":
        return point["ms"], MS * estimates().first_token_s(point["new"], point["cached"])
    streams, depth = point["streams"], point["depth"]
    if point["what"] == "device step":
        return point["ms"], MS * estimates().device_step_s(depth, streams=streams)
    return point["tokens_per_s"], streams / estimates().step_s(depth, streams=streams)


@pytest.mark.parametrize("point", POINTS, ids=named)
def test_each_measured_point_is_predicted_within_a_quarter(point: dict[str, Any]) -> None:
    measured, predicted = beside(point)
    print(f"{named(point)}: predicted {predicted:.4g}, {predicted / measured - 1:+.0%}")
    assert predicted == pytest.approx(measured, rel=TOLERANCE)


def test_misses_lie_on_both_sides_and_are_an_eighth_at_most_on_average() -> None:
    """A constant that was drawn to one point would push the others to one side."""
    ratios = [predicted / measured for measured, predicted in map(beside, POINTS)]
    assert min(ratios) < 1 < max(ratios)
    assert sum(abs(ratio - 1) for ratio in ratios) / len(ratios) < 0.125


def test_a_tiny_model_is_bound_by_its_launches() -> None:
    """Bytes and FLOP alone allowed 13 million tokens a second of its prompts.

    The same machine and day, `ft run tests/device/tiny-cuda.yaml`: 13 tokens in and 19 out took 9 and 10 ms, with
    steps in turn, which cost 0.24 ms of the host more than those that run ahead.
    """
    loaded = load_profile(str(ROOT / "tests/device/tiny-cuda.yaml"), ())
    plan = compile_profile(loaded.profile, CARDS)
    assert plan.estimates.prefill_tokens_per_s < 2e6
    found = PlanEstimates(loaded.profile, plan)
    answer = found.first_token_s(13) + 18 * (found.step_s(22) + 0.24e-3)
    assert answer == pytest.approx(9.5e-3, rel=TOLERANCE)
