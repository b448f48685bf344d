"""Does the checkpoint hold exactly the plan's tensors? Headers only, before anything is allocated."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan, SlotPart
from firmtoken.runtime.weights.checkpoint import Checkpoint, open_checkpoint
from firmtoken.runtime.weights.conventions import CONVENTIONS, KV_SCALES
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.format_check import require_declared_formats, require_format
from firmtoken.runtime.weights.geometry_check import require_same_geometry
from firmtoken.runtime.weights.planned_model import stored_weights
from firmtoken.runtime.weights.stored import (
    Stored,
    find_expert,
    find_stored,
    is_stored,
    stacked_sources,
)

UNUSED_SUFFIXES = (*(convention.input_scale for convention in CONVENTIONS), *KV_SCALES)
"""Weights are used without quantising activations; scales of keys and values are checked, not applied."""
UNUSED_PREFIXES = ("model.visual.", "visual.", "mtp.", "model.mtp")
OTHER_MODEL = "the profile's `model` describes another checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseItem:
    """One tensor of a weight row, and what is stacked to make it."""

    weight: Weight
    ordinal: int
    """Which one on the weight's axis."""
    parts: tuple[Stored, ...]

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertItem:
    """One expert."""

    layer: int
    expert: int
    parts: tuple[Stored, ...]
    """gate, up, down"""

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All that a plan needs from a checkpoint."""

    checkpoint: Checkpoint
    dense: tuple[DenseItem, ...]
    experts: tuple[ExpertItem, ...]


def preflight(plan: Plan, folder: Path) -> Inventory:
    """Every tensor of the plan, with shape and format as expected, and no tensor besides; else `LoadError`."""
    return preflight_headers(plan, open_checkpoint(folder))


def preflight_headers(plan: Plan, checkpoint: Checkpoint) -> Inventory:
    """`preflight` of headers that were read already, perhaps from the hub; the folder needs its config files alone."""
    require_same_geometry(plan, checkpoint)
    inventory = take_inventory(plan, checkpoint)
    require_declared_formats(plan, checkpoint)
    return inventory


def take_inventory(plan: Plan, checkpoint: Checkpoint) -> Inventory:
    """The headers alone against the plan: what `preflight` asks of a checkpoint without config files."""
    _require_all(plan, checkpoint)
    inventory = Inventory(
        checkpoint=checkpoint,
        dense=tuple(_dense_items(plan, checkpoint)),
        experts=tuple(_expert_items(plan, checkpoint)),
    )
    _refuse_strangers(inventory)
    return inventory


def _sources(plan: Plan, checkpoint: Checkpoint) -> Iterator[str]:
    """Modules and parameters of the plan; those of experts where a layer does not hold all of them in two tensors."""
    for weight in stored_weights(plan):
        for layer in _layers_on(plan, weight.axis):
            for source in weight.sources:
                yield source.format(l=layer)
    stacked = stacked_sources(plan.experts.sources)
    for layer in range(len(plan.experts.slots_per_layer)):
        if all(is_stored(checkpoint, source.format(l=layer)) for source in stacked):
            continue
        for expert in range(plan.experts.per_layer):
            for source in plan.experts.sources:
                yield source.format(l=layer, e=expert)


def _layers_on(plan: Plan, axis: str) -> list[int]:
    """Layers in order of their ordinal on the axis; one nameless entry for a tensor outside layers."""
    kinds = plan.model.layer_kinds
    if not axis:
        return [0]
    return [layer for layer, kind in enumerate(kinds) if axis in ("layer", kind)]


def _experts(plan: Plan) -> Iterator[tuple[int, int]]:
    for layer in range(len(plan.experts.slots_per_layer)):
        for expert in range(plan.experts.per_layer):
            yield layer, expert


def _require_all(plan: Plan, checkpoint: Checkpoint) -> None:
    missing = [source for source in _sources(plan, checkpoint) if not is_stored(checkpoint, source)]
    if missing:
        raise LoadError(
            file=checkpoint.folder.name,
            tensor=checkpoint.physical(missing[0]) + ".weight",
            expected="this tensor",
            found="none of this name",
            hint=OTHER_MODEL,
            more=len(missing) - 1,
        )


def _find(checkpoint: Checkpoint, source: str) -> Stored:
    stored = find_stored(checkpoint, source)
    assert stored is not None, "_require_all has seen it"
    return stored


def _dense_items(plan: Plan, checkpoint: Checkpoint) -> Iterator[DenseItem]:
    for weight in stored_weights(plan):
        for ordinal, layer in enumerate(_layers_on(plan, weight.axis)):
            parts = tuple(_find(checkpoint, source.format(l=layer)) for source in weight.sources)
            for part, kept in zip(parts, weight.parts, strict=True):
                _require_shape(part, (kept.rows, *weight.shape[1:]))
                require_format(part, kept.format)
            yield DenseItem(weight=weight, ordinal=ordinal, parts=parts)


def matrix_shape(stored: Stored) -> tuple[int, ...]:
    """Its shape without the middle 1 of a depthwise convolution [C, 1, K]."""
    if len(stored.shape) == 3 and stored.shape[1] == 1:
        return stored.shape[0], stored.shape[2]
    return stored.shape


def _require_shape(stored: Stored, expected: tuple[int, ...]) -> None:
    if matrix_shape(stored) != expected:
        raise LoadError(
            file=stored.weight.file,
            tensor=stored.weight.name,
            expected=f"shape {list(expected)}",
            found=f"{list(stored.shape)}",
            hint=OTHER_MODEL,
        )


def _expert_items(plan: Plan, checkpoint: Checkpoint) -> Iterator[ExpertItem]:
    experts = plan.experts
    packed = experts.format == "nvfp4"
    shapes = [
        _numbers(next(part for part in experts.slot_parts if part.name == name), packed=packed)
        for name in ("gate", "up", "down")
    ]
    for layer, expert in _experts(plan):
        parts = find_expert(checkpoint, experts.sources, layer, expert, per_layer=experts.per_layer)
        assert parts is not None, "_require_all has seen it"
        for part, shape in zip(parts, shapes, strict=True):
            _require_shape(part, shape)
            require_format(part, experts.format)
        yield ExpertItem(layer=layer, expert=expert, parts=parts)


def _numbers(part: SlotPart, *, packed: bool) -> tuple[int, ...]:
    # Shape of the numbers that a slot's part stands for.
    num_rows, columns = part.shape
    return (num_rows, 2 * columns) if packed else (num_rows, columns)


def _refuse_strangers(inventory: Inventory) -> None:
    items: Callable[..., Iterator[DenseItem | ExpertItem]] = chain
    used = {
        tensor.name
        for item in items(inventory.dense, inventory.experts)
        for part in item.parts
        for tensor in part.tensors
    }
    strangers = [
        tensor
        for name, tensor in inventory.checkpoint.tensors.items()
        if name not in used
        if not name.startswith(UNUSED_PREFIXES) and not name.endswith(UNUSED_SUFFIXES)
    ]
    if strangers:
        raise LoadError(
            file=strangers[0].file,
            tensor=strangers[0].name,
            expected="only tensors that the model uses",
            found="one that it does not know",
            hint=OTHER_MODEL,
            more=len(strangers) - 1,
        )
