"""Does the checkpoint hold exactly the plan's tensors? Headers only, before anything is allocated."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan, SlotPart
from firmtoken.runtime.weights.checkpoint import Checkpoint, open_checkpoint
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.stored import Stored, find_stored

UNUSED_SUFFIXES = (".input_scale", ".k_scale", ".v_scale")
"""Activation and KV scales: weights are used without quantising activations, and KV is not stored in FP8."""
UNUSED_PREFIXES = ("model.visual.", "visual.", "mtp.")
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
    checkpoint = open_checkpoint(folder)
    _require_all(checkpoint, _sources(plan))
    inventory = Inventory(
        checkpoint=checkpoint,
        dense=tuple(_dense_items(plan, checkpoint)),
        experts=tuple(_expert_items(plan, checkpoint)),
    )
    _refuse_strangers(inventory)
    return inventory


def _sources(plan: Plan) -> Iterator[str]:
    for weight in plan.weights:
        for layer in _layers_on(plan, weight.axis):
            for source in weight.sources:
                yield source.format(l=layer)
    for layer, expert in _experts(plan):
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


def _require_all(checkpoint: Checkpoint, sources: Iterable[str]) -> None:
    missing = [
        source
        for source in sources
        if checkpoint.find(f"{source}.weight") is None and checkpoint.find(source) is None
    ]
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
    for weight in plan.weights:
        for ordinal, layer in enumerate(_layers_on(plan, weight.axis)):
            parts = tuple(_find(checkpoint, source.format(l=layer)) for source in weight.sources)
            _check_shapes(parts, weight.shape)
            yield DenseItem(weight=weight, ordinal=ordinal, parts=parts)


def _check_shapes(parts: tuple[Stored, ...], shape: tuple[int, ...]) -> None:
    """Stacked by rows, the parts must give `shape`."""
    columns = shape[1:]
    for part in parts:
        if matrix_shape(part)[1:] != columns:
            raise _wrong_shape(part, [shape[0] if len(parts) == 1 else "rows", *columns])
    if sum(matrix_shape(part)[0] for part in parts) != shape[0]:
        if len(parts) == 1:
            raise _wrong_shape(parts[0], list(shape))
        raise LoadError(
            file=parts[0].weight.file,
            tensor=parts[0].weight.name,
            expected=f"{shape[0]} rows together with the {len(parts) - 1} tensors stacked below it",
            found=" + ".join(str(part.shape[0]) for part in parts),
            hint=OTHER_MODEL,
        )


def matrix_shape(stored: Stored) -> tuple[int, ...]:
    """Its shape without the middle 1 of a depthwise convolution [C, 1, K]."""
    if len(stored.shape) == 3 and stored.shape[1] == 1:
        return stored.shape[0], stored.shape[2]
    return stored.shape


def _wrong_shape(stored: Stored, expected: Iterable[object]) -> LoadError:
    return LoadError(
        file=stored.weight.file,
        tensor=stored.weight.name,
        expected=f"shape [{', '.join(map(str, expected))}]",
        found=f"[{', '.join(map(str, stored.shape))}]",
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
        names = (source.format(l=layer, e=expert) for source in experts.sources)
        parts = tuple(_find(checkpoint, name) for name in names)
        for part, shape in zip(parts, shapes, strict=True):
            if part.shape != shape:
                raise _wrong_shape(part, shape)
            if packed and part.format != "nvfp4":
                raise LoadError(
                    file=part.weight.file,
                    tensor=part.weight.name,
                    expected="NVFP4 (U8 with `weight_scale` and `weight_scale_2`)",
                    found=part.weight.dtype,
                    hint="the plan keeps experts as NVFP4; choose a checkpoint that stores them so",
                )
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
