"""From a plan and a checkpoint to an interpreter with every weight in its place."""

from pathlib import Path

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.weights.load import Progress, load
from firmtoken.runtime.weights.preflight import Inventory


class NoFolder(Exception):
    """The plan's weights are not in a folder of this machine."""

    hint = "fetch the checkpoint and set `model.source.path`"


def checkpoint_folder(plan: Plan) -> Path:
    """Where the checkpoint's files are; raises `NoFolder`."""
    path = plan.model.source.get("path")
    if path is None:
        raise NoFolder(f"the weights of `{plan.model.name}` have no folder: {plan.model.source}")
    return Path(path)


class PlanPlaces:
    """Where the loader puts what it reads: the plan's places."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def weight(self, name: str, ordinal: int) -> torch.Tensor:
        """The tensor of a weight row."""
        return self._views.weight(name, ordinal)

    def bank(self, layer: int) -> torch.Tensor:
        """uint8 [E, slot_bytes]"""
        return self._views.tensor(Value("bank", (layer,)))

    def slots(self) -> torch.Tensor:
        """uint8 [S, slot_bytes]"""
        return self._views.experts.slots


def load_weights(
    plan: Plan, interpreter: Interpreter, inventory: Inventory, progress: Progress
) -> None:
    """Reads the checkpoint; every expert slot that decode may hit is filled when this returns."""
    load(plan, inventory, PlanPlaces(interpreter.views), progress)
    fill_slots(plan, interpreter.views)


def fill_slots(plan: Plan, views: Views) -> None:
    """Each layer's range gets its first experts, and the table says so; resident experts are there already."""
    if plan.experts.placement == "resident":
        return
    for layer, count in enumerate(plan.experts.slots_per_layer):
        table = views.tensor(Value("table", (layer,)))
        cache = views.slots(Value("cache", (layer,)))
        found = min(count, plan.experts.per_layer)
        cache.arena.slots[cache.first : cache.first + found] = views.tensor(
            Value("bank", (layer,))
        )[:found]
        table.fill_(-1)
        table[:found] = torch.arange(cache.first, cache.first + found, dtype=table.dtype)
