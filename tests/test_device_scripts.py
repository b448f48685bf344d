"""`tests/device/tiny_equal.py` and `same_tokens.py` on the CPU: what they would miss on a GPU, nobody would notice."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any  # scripts are no package: what they define has no types here

import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

NAMES = ("reference_texts", "told", "choices", "tiny_equal", "same_tokens")


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, Any]]:
    sys.path.insert(0, str(Path(__file__).parent / "device"))
    yield {name: importlib.import_module(name) for name in NAMES}
    sys.path.pop(0)
    for name in NAMES:
        del sys.modules[name]


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_engine_is_compared_with_plain_torch_and_given_its_choices(
    scripts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    equal = scripts["tiny_equal"]
    plan = compile_profile(load_profile("tiny-cpu-resident", []).profile, CARDS)
    interpreter = scripts["told"].start(plan)
    engine = scripts["told"].Told(plan, interpreter)
    choices = scripts["choices"].Choices(interpreter, engine.scheduler, "fp32")
    threads = torch.get_num_threads()
    rounded = scripts["reference_texts"].compute(scripts["reference_texts"].questions(2), "fp8")
    torch.set_num_threads(threads)
    wrong = [replace(text, scores=text.scores.roll(1, -1)) for text in rounded]
    passed = [equal.compare(case, "fp8", engine, choices, rounded) for case in equal.CASES]
    passed.append(equal.compare("experts, codes", "fp8", engine, choices, wrong))

    free, experts, codes, others = lines(capsys)
    # The engine's own pages are fp32, those of the reference FP8: what is given is used, or they would differ.
    assert free["router"]["other_choices"] and free["positions_over"]
    assert experts["positions_over"]
    assert codes["share_of_largest_logit"] < 1e-5
    assert others["share_of_largest_logit"] > 0.5
    assert passed == [True, True, True, False]


def answer(scripts: dict[str, Any], logits: list[list[float]]) -> list[Any]:
    made = scripts["told"].Answer(())
    made.logits = [torch.tensor(row) for row in logits]
    return [made]


@pytest.mark.parametrize(
    ("case", "mine", "theirs", "exact", "passed"),
    [
        ("the same bits", [10.0, 9.5], [10.0, 9.5], True, True),
        ("another bit", [10.0, 9.5], [10.0, 9.500001], True, False),
        ("another arg-max at a near tie", [10.0, 9.5], [9.8, 9.9], False, True),
        ("another arg-max far from one", [10.0, 5.0], [5.0, 10.0], False, False),
    ],
)
def test_runs_may_differ_by_near_ties_only(
    scripts: dict[str, Any],
    case: str,
    mine: list[float],
    theirs: list[float],
    exact: bool,
    passed: bool,
) -> None:
    found = scripts["same_tokens"].Comparison(case, exact=exact)
    usual = [10.0, 9.5]
    differing = usual if exact else [10.2, 9.5]
    one = answer(scripts, [*[usual] * 199, mine])
    other = answer(scripts, [*[differing] * 199, theirs])
    found.add("one", one, other)
    assert found.passed() is passed
