"""Small models of every family: what a real one has, in a geometry that takes milliseconds."""

from pathlib import Path

from firmtoken.schema.load import load_profile
from firmtoken.schema.model import Model

MODELS = Path(__file__).parent / "models"
FILES = {
    "qwen3_5_moe": "ft:models/tiny-moe",
    "qwen3_moe": str(MODELS / "small-qwen3.yaml"),
    "minimax_m2": str(MODELS / "small-minimax.yaml"),
}
FAMILIES = tuple(FILES)
SHIPPED = ("4090-qwen", "4090-qwen3-30b", "4090-minimax", "tiny-cpu")
"""Profiles of one model each."""


def overrides(family: str, source: str) -> list[str]:
    """What `--set` makes of a profile one of this family's small model, with these weights."""
    return [f"model={FILES[family]}", f"model.source={source}"]


def small_model(family: str) -> Model:
    return load_profile("tiny-cpu", overrides(family, "{synthetic: {seed: 0}}")).profile.model
