"""Fills what a plan lays out: dense weights on the device, experts in their bank or their slots."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch

from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels.expert_slots import typed_view
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.fill import dense_jobs, fill_numbers, fill_packed, pieces
from firmtoken.runtime.weights.kv_scales import kv_scale_jobs
from firmtoken.runtime.weights.making import make_batch
from firmtoken.runtime.weights.preflight import ExpertItem, Inventory
from firmtoken.runtime.weights.reading import (
    BytesOf,
    Job,
    Progress,
    ReadBatch,
    files_reader,
    read_all,
)
from firmtoken.runtime.weights.stored import Stored

MATRICES = ("gate", "up", "down")


class Places(Protocol):
    """Where the engine wants the bytes; all memory is the engine's."""

    def sections(self, weight: Weight, ordinal: int) -> Mapping[str, torch.Tensor]:
        """The tensors of a weight row, by the names of `compiler/weight_sections.py`."""
        ...

    def bank(self, layer: int) -> torch.Tensor:
        """uint8 [E, slot_bytes]: a layer's experts on the host. Asked for when experts are offloaded."""
        ...

    def slots(self) -> torch.Tensor:
        """uint8 [S, slot_bytes]: all slots of the device. Asked for when experts are resident."""
        ...

    def buffer(self, size: int) -> torch.Tensor:
        """uint8 [size] of host memory, into which files are read and from which everything is filled."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Bytes that were read from the checkpoint."""

    dense_bytes: int
    expert_bytes: int


def load(
    plan: Plan,
    inventory: Inventory,
    places: Places,
    progress: Progress,
    *,
    keep_experts: bool = False,
) -> Loaded:
    """Fills all from a checkpoint that `preflight` has accepted, in one pass over its files; raises `LoadError`.

    `keep_experts`: they are where they belong already.
    """
    dense = [
        job
        for item in inventory.dense
        for job in dense_jobs(item, places.sections(item.weight, item.ordinal))
    ]
    experts = [] if keep_experts else list(expert_jobs(plan, inventory.experts, places))
    jobs = (*dense, *experts, *kv_scale_jobs(plan, inventory.checkpoint))
    read = reader_of(inventory.checkpoint)
    read_all(read, jobs, places.buffer, "weights", progress)
    return Loaded(
        dense_bytes=sum(job.bytes for job in dense), expert_bytes=sum(job.bytes for job in experts)
    )


def reader_of(checkpoint: Checkpoint) -> ReadBatch:
    """What brings its tensors to memory."""
    if checkpoint.maker is not None:
        return partial(make_batch, checkpoint.maker)
    return files_reader(checkpoint.folder, {tensor.file for tensor in checkpoint.tensors.values()})


def expert_jobs(plan: Plan, items: Iterable[ExpertItem], places: Places) -> Iterator[Job]:
    """All experts: to the host's banks when offloaded, else straight to their slots."""
    layers = [expert_parts(plan, places, layer) for layer in range(len(plan.model.layer_kinds))]
    fill = fill_packed_part if plan.experts.format == "nvfp4" else fill_decoded_part
    for item in items:
        for number, matrix in enumerate(item.parts):
            for row, piece in pieces(matrix):
                place = Place(layers[item.layer], number, item.expert, row)
                yield Job(tensors=piece.tensors, do=partial(fill, piece, place))


def expert_parts(plan: Plan, places: Places, layer: int) -> dict[str, torch.Tensor]:
    """Part name -> [E, *shape] over a layer's experts, where they will be filled."""
    experts = plan.experts
    if experts.placement == "resident":
        first = sum(experts.slots_per_layer[:layer])
        rows = places.slots()[first : first + experts.per_layer]
    else:
        rows = places.bank(layer)
    return {part.name: typed_view(rows, part) for part in experts.slot_parts}


class Place(NamedTuple):
    """Where a piece of an expert belongs; views are made when it is filled, for there are a hundred thousand."""

    parts: Mapping[str, torch.Tensor]
    """Part name -> [E, *shape], of a layer's experts."""
    matrix: int
    """Which one of `MATRICES`."""
    expert: int
    row: int
    """The first one."""

    def rows(self, suffix: str, count: int) -> torch.Tensor:
        """Those of the matrix itself, or of what belongs to it."""
        part = self.parts[MATRICES[self.matrix] + suffix]
        return part[self.expert, self.row : self.row + count]


def fill_packed_part(piece: Stored, place: Place, bytes_of: BytesOf) -> None:
    """As it is in the file; gate, up and down keep a global scale each."""
    count = piece.shape[0]
    own = place.parts["globals"][place.expert, place.matrix : place.matrix + 1]
    fill_packed(piece, place.rows("", count), place.rows("_scale", count), own, bytes_of)


def fill_decoded_part(piece: Stored, place: Place, bytes_of: BytesOf) -> None:
    """As fp32 or bf16."""
    fill_numbers(piece, place.rows("", piece.shape[0]), 0.0, bytes_of)
