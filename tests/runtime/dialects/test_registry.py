"""Dialects by name."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.runtime.dialects.qwen3_5 import QWEN3_5
from firmtoken.runtime.dialects.registry import DIALECTS, UnknownDialect, find_dialect

MODELS = Path(__file__).parents[3] / "profiles" / "models"
NAMES = [dialect.name for dialect in DIALECTS]


def test_a_dialect_is_found_by_the_name_in_the_models_facts() -> None:
    assert find_dialect("qwen3_5") is QWEN3_5
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(
    ("written", "hint"), [("qwen3.5", "did you mean `qwen3_5`?"), ("klingon", None)]
)
def test_an_unknown_one_is_refused_with_the_known_ones_and_the_nearest(
    written: str, hint: str | None
) -> None:
    with pytest.raises(UnknownDialect) as unknown:
        find_dialect(written)
    assert str(unknown.value) == (
        f"unknown dialect `{written}`: known are `qwen3_5`, `qwen3`, `minimax_m2`"
    )
    assert unknown.value.hint == hint


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_model_speaks_a_known_one(path: Path) -> None:
    assert YAML(typ="safe").load(path)["dialect"] in NAMES


def test_every_family_speaks_a_known_one() -> None:
    assert {family.config.dialect for family in FAMILIES} <= set(NAMES)
