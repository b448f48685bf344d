"""Does the checkpoint's own `config.json` describe the model that the profile does?"""

from collections.abc import Iterator, Mapping

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.declared import CONFIG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.model_config import read_model

CHOSEN = "max_position_embeddings"
"""How far a model is trusted beyond its training is the profile's word; no tensor and no other number depends on it."""
OTHER = "one of them is of another model; `ft profile model DIR` writes the profile of what a folder holds"


def require_same_geometry(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raises `LoadError` for a config that says another model; without one, the tensors' shapes must do.

    Shapes do not tell a rotary base, an epsilon, or how many experts a token takes.
    """
    if not (checkpoint.folder / CONFIG).exists():
        return
    model = read_model(checkpoint.folder, name=plan.model.name, source=plan.model.source)
    geometry = model["geometry"]
    assert isinstance(geometry, Mapping)
    said = {"family": model["family"], **dict(_flat(geometry))}
    planned = {"family": plan.model.family, **plan.model.geometry}
    faults = [
        (field, wanted, said[field])
        for field, wanted in planned.items()
        if field != CHOSEN and field in said and said[field] != wanted
    ]
    if faults:
        field, wanted, found = faults[0]
        raise LoadError(
            file=CONFIG,
            expected=f"`{field}: {wanted}`, as the model profile says",
            found=f"`{found}`",
            hint=OTHER,
            more=len(faults) - 1,
        )


def _flat(section: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
