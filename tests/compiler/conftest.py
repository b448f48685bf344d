"""Plans of the shipped profiles, compiled once."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"


@lru_cache(maxsize=64)
def compiled(name: str, *overrides: str) -> Plan:
    """The plan of `profiles/<name>.yaml` with these `--set` values."""
    loaded = load_profile(str(PROFILES / f"{name}.yaml"), overrides)
    return compile_profile(loaded.profile, CARDS)


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., Plan]:
    """`plan_of("tiny-cpu", "serving.context=8k")`"""
    return compiled


@pytest.fixture(scope="session")
def tiny_plan() -> Plan:
    """The embedded model with about 40 % of its experts on the device."""
    return compiled("tiny-cpu")
