"""`ft explain` says what a code means that it uses."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from firmtoken.compiler.explanation import HAZARD, LEGEND, explanation
from firmtoken.compiler.hazards import find_hazard
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
WSL = "hardware.software.os=wsl"


def explained(plan_of: Callable[..., Plan], name: str, path: str, *overrides: str) -> str:
    profile = load_profile(str(PROFILES / f"{name}.yaml"), overrides).profile
    return explanation(profile, plan_of(name, *overrides), CARDS, path)


@pytest.mark.parametrize(
    ("name", "path", "overrides"),
    [
        ("4090-qwen", "kernels", ()),
        ("4090-qwen", "kernels.attention.prefill", ()),
        ("4090-minimax", "warnings", (WSL,)),
        ("4090-minimax", "", (WSL,)),
    ],
)
def test_each_hazard_that_is_named_is_explained_below(
    plan_of: Callable[..., Plan], name: str, path: str, overrides: tuple[str, ...]
) -> None:
    text, legend = explained(plan_of, name, path, *overrides).split(f"\n\n{LEGEND[:40]}")
    named = {match.group() for match in HAZARD.finditer(text)}
    assert named
    told = re.split(r"\n  (?=H-)", legend)[1:]
    entries = dict(entry.split("  ", 1) for entry in told)
    assert entries.keys() == named
    for hazard_id, words in entries.items():
        assert " ".join(words.split()) == find_hazard(hazard_id).effect
    assert all(len(line) <= 100 for line in legend.splitlines())


@pytest.mark.parametrize("path", ["", "kernels", "context.effective"])
def test_a_text_without_hazards_has_no_legend(plan_of: Callable[..., Plan], path: str) -> None:
    assert "hazard" not in explained(plan_of, "tiny-cpu", path)
