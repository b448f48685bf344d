"""Fills what a plan lays out: dense weights on the device, experts in their bank or their slots."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels.expert_slots import typed_view
from firmtoken.runtime.weights.preflight import DenseItem, ExpertItem, Inventory
from firmtoken.runtime.weights.reader import Reader
from firmtoken.runtime.weights.stored import Stored

THREADS = 8
MATRICES = ("gate", "up", "down")

Progress = Callable[[str, int, int], None]
"""Called with a phase for people, bytes read so far, and bytes in all; always by the thread that called `load`."""


class Places(Protocol):
    """Where the engine wants the bytes; all memory is the engine's."""

    def weight(self, name: str, ordinal: int) -> torch.Tensor:
        """The tensor of a weight row, in its dtype and shape."""
        ...

    def bank(self, layer: int) -> torch.Tensor:
        """uint8 [E, slot_bytes]: a layer's experts on the host. Asked for when experts are offloaded."""
        ...

    def slots(self) -> torch.Tensor:
        """uint8 [S, slot_bytes]: all slots of the device. Asked for when experts are resident."""
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
    """Fills all from a checkpoint that `preflight` has accepted; raises `LoadError`.

    `keep_experts`: they are where they belong already.
    """
    reader = Reader(inventory.checkpoint)
    dense = load_dense(reader, inventory.dense, places, progress)
    experts = 0 if keep_experts else load_experts(plan, reader, inventory.experts, places, progress)
    return Loaded(dense_bytes=dense, expert_bytes=experts)


def load_dense(
    reader: Reader, items: Iterable[DenseItem], places: Places, progress: Progress
) -> int:
    """All dense weights; bytes read."""
    jobs = [(item.bytes, partial(fill_dense, reader, item, places)) for item in items]
    return run_jobs("weights", jobs, progress)


def load_experts(
    plan: Plan, reader: Reader, items: Iterable[ExpertItem], places: Places, progress: Progress
) -> int:
    """All experts: to the host's banks when offloaded, else straight to their slots; bytes read."""
    layers = [expert_parts(plan, places, layer) for layer in range(len(plan.model.layer_kinds))]
    fill = fill_packed if plan.experts.format == "nvfp4" else fill_decoded
    jobs = [
        (item.bytes, partial(fill, reader, item.parts, layers[item.layer], item.expert))
        for item in items
    ]
    return run_jobs("experts", jobs, progress)


def expert_parts(plan: Plan, places: Places, layer: int) -> dict[str, torch.Tensor]:
    """Part name -> [E, *shape] over a layer's experts, where they will be filled."""
    experts = plan.experts
    if experts.placement == "resident":
        first = sum(experts.slots_per_layer[:layer])
        rows = places.slots()[first : first + experts.per_layer]
    else:
        rows = places.bank(layer)
    return {part.name: typed_view(rows, part) for part in experts.slot_parts}


def fill_dense(reader: Reader, item: DenseItem, places: Places) -> None:
    """One tensor: its parts stacked by rows, plus the constant that a zero-centred norm lacks, in fp32."""
    target = places.weight(item.weight.name, item.ordinal)
    first = 0
    for part in item.parts:
        rows = target[first : first + part.shape[0]]
        rows.copy_(torch.add(reader.decode(part), item.weight.add).view(rows.shape))
        first += part.shape[0]


def fill_decoded(
    reader: Reader, stored: tuple[Stored, ...], parts: dict[str, torch.Tensor], expert: int
) -> None:
    """One expert as fp32 or bf16."""
    for name, matrix in zip(MATRICES, stored, strict=True):
        parts[name][expert].copy_(reader.decode(matrix))


def fill_packed(
    reader: Reader, stored: tuple[Stored, ...], parts: dict[str, torch.Tensor], expert: int
) -> None:
    """One expert as it is in the file; gate, up and down keep a global scale each."""
    scales = []
    for name, matrix in zip(MATRICES, stored, strict=True):
        parts[name][expert].copy_(reader.read(matrix.weight))
        parts[f"{name}_scale"][expert].copy_(reader.read_blocks(matrix.scale))
        scales.append(reader.read_scale(matrix.global_scale))
    parts["globals"][expert].copy_(torch.tensor(scales))


def run_jobs(phase: str, jobs: Iterable[tuple[int, Callable[[], None]]], progress: Progress) -> int:
    """All jobs on a few threads; the first failure ends it. Bytes read."""
    listed = list(jobs)
    total = sum(size for size, _ in listed)
    done = 0
    progress(phase, done, total)
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = {pool.submit(torch.inference_mode()(job)): size for size, job in listed}
        try:
            for future in as_completed(sizes):
                future.result()
                done += sizes[future]
                progress(phase, done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return total
