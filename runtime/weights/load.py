"""Fills what a plan lays out: dense weights on the device, experts in their bank or their slots."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch

from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels.expert_slots import typed_view
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.fill import dense_jobs, fill_numbers, pieces
from firmtoken.runtime.weights.kv_scales import kv_scale_jobs
from firmtoken.runtime.weights.making import MAKERS, make_batch
from firmtoken.runtime.weights.preflight import ExpertItem, Inventory
from firmtoken.runtime.weights.reader import Reader
from firmtoken.runtime.weights.reading import (
    READERS,
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

    def experts(self, layer: int) -> torch.Tensor:
        """uint8 [E, slot_bytes]: where a layer's experts are filled."""
        ...

    def filled(self, layer: int) -> None:
        """All experts of a layer are there; called by whichever thread filled the last, which goes on afterwards."""
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
    experts = [] if keep_experts else expert_jobs(plan, inventory.experts, places)
    jobs = (*dense, *experts, *kv_scale_jobs(plan, inventory.checkpoint))
    checkpoint = inventory.checkpoint
    threads = READERS if checkpoint.maker is None else MAKERS
    read_all(reader_of(checkpoint), jobs, places.buffer, "weights", progress, threads=threads)
    return Loaded(
        dense_bytes=sum(job.bytes for job in dense), expert_bytes=sum(job.bytes for job in experts)
    )


def reader_of(checkpoint: Checkpoint) -> ReadBatch:
    """What brings its tensors to memory."""
    if checkpoint.maker is not None:
        return partial(make_batch, checkpoint.maker)
    return files_reader(checkpoint.folder, {tensor.file for tensor in checkpoint.tensors.values()})


def expert_jobs(plan: Plan, items: Iterable[ExpertItem], places: Places) -> list[Job]:
    """All experts, each layer of which is called filled after its last job."""
    layers = [Layer(plan, places, layer) for layer in range(len(plan.model.layer_kinds))]
    fill = fill_packed_part if plan.experts.format == "nvfp4" else fill_decoded_part
    jobs = []
    for item in items:
        layer = layers[item.layer]
        for number, matrix in enumerate(item.parts):
            for row, piece in pieces(matrix):
                place = Place(layer, number, item.expert, row)
                jobs.append(Job(tensors=piece.tensors, do=partial(layer.do, fill, piece, place)))
                layer.left += 1
    return jobs


class Layer:
    """Where the experts of a layer are filled, and how many jobs that still takes."""

    def __init__(self, plan: Plan, places: Places, layer: int) -> None:
        self.slots = places.experts(layer)
        """uint8 [E, slot_bytes]"""
        self.parts = {part.name: typed_view(self.slots, part) for part in plan.experts.slot_parts}
        """Part name -> [E, *shape]"""
        self.rows = {
            part.name: (part.offset, part.bytes // part.shape[0])
            for part in plan.experts.slot_parts
        }
        """Part name -> where it begins in a slot, bytes of each of its rows."""
        self.left = 0
        self._lock = threading.Lock()
        self._filled = partial(places.filled, layer)

    def do(self, fill: "Fill", piece: Stored, place: "Place", bytes_of: BytesOf) -> None:
        """One job."""
        fill(piece, place, bytes_of)
        with self._lock:
            self.left -= 1
            last = not self.left
        if last:
            self._filled()


class Place(NamedTuple):
    """Where a piece of an expert belongs; views are made when it is filled, for there are a hundred thousand."""

    layer: Layer
    matrix: int
    """Which one of `MATRICES`."""
    expert: int
    row: int
    """The first one."""

    def rows(self, count: int) -> torch.Tensor:
        """Those of the matrix, typed."""
        part = self.layer.parts[MATRICES[self.matrix]]
        return part[self.expert, self.row : self.row + count]

    def bytes(self, suffix: str, count: int) -> torch.Tensor:
        """uint8: as many rows of the matrix itself, or of what belongs to it."""
        begin, row_bytes = self.layer.rows[MATRICES[self.matrix] + suffix]
        begin += self.row * row_bytes
        return self.layer.slots[self.expert, begin : begin + count * row_bytes]


Fill = Callable[[Stored, Place, BytesOf], None]


def fill_packed_part(piece: Stored, place: Place, bytes_of: BytesOf) -> None:
    """As it is in the file; gate, up and down keep a global scale each.

    Bytes as bytes: a call of torch lets another thread have the interpreter, also one that only looks at the same bytes
    as other numbers.
    """
    assert piece.scale is not None
    reader, count = Reader(bytes_of), piece.shape[0]
    place.bytes("", count).copy_(bytes_of(piece.weight))
    place.bytes("_scale", count).copy_(reader.block_bytes(piece.scale))
    own = place.layer.parts["globals"][place.expert, place.matrix]
    own.fill_(reader.read_global(piece))


def fill_decoded_part(piece: Stored, place: Place, bytes_of: BytesOf) -> None:
    """As fp32 or bf16."""
    fill_numbers(piece, place.rows(piece.shape[0]), 0.0, bytes_of)
