"""Experts that outlive the engine: read once, brought to their slots, and trusted only where all of them were read."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine import loading
from firmtoken.runtime.engine.loading import (
    RESTART_COPY,
    inventory_of,
    load_weights,
    resident_slots,
)
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.load import Loaded
from firmtoken.runtime.weights.preflight import ExpertItem, Inventory
from firmtoken.schema.load import load_profile


def compiled(name: str) -> Plan:
    return compile_profile(load_profile(name, ["serving.context=1k"]).profile, CARDS)


class Machine:
    """What outlives an engine: segments, and what is said of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.position = Position()
        self.inventory = inventory_of(plan)
        self.segments: dict[str, int] = {}
        for space in plan.spaces:
            if space.memory == "host" and space.shared:
                self.segments[space.name] = os.memfd_create(space.name)
                os.ftruncate(self.segments[space.name], space.bytes)
        self.phases: list[str] = []

    def engine(self, inventory: Inventory | None = None) -> tuple[Interpreter, Loaded]:
        arena = Arena(self.plan.spaces, self.segments)
        interpreter = Interpreter(self.plan, arena, self.position)
        self.phases = []

        def progress(phase: str, _done: int, _total: int) -> None:
            self.phases.append(phase)

        try:
            loaded = load_weights(
                self.plan, interpreter, inventory or self.inventory, progress, self.segments
            )
        finally:
            interpreter.close()
        return interpreter, loaded

    def close(self) -> None:
        for descriptor in self.segments.values():
            os.close(descriptor)


@pytest.fixture
def resident() -> Iterator[Machine]:
    machine = Machine(compiled("tiny-cpu-resident"))
    yield machine
    machine.close()


def experts(plan: Plan, interpreter: Interpreter) -> list[torch.Tensor]:
    return [
        resident_slots(plan, interpreter.views, layer)
        for layer in range(len(plan.model.layer_kinds))
    ]


def test_resident_experts_are_the_same_in_their_slots_with_and_without_a_copy(
    resident: Machine,
) -> None:
    plan = resident.plan
    interpreter, loaded = resident.engine()
    alone = Interpreter(plan, Arena(plan.spaces, {}))
    load_weights(plan, alone, resident.inventory, lambda *_: None)
    alone.close()
    for layer, (slots, wanted) in enumerate(
        zip(experts(plan, interpreter), experts(plan, alone), strict=True)
    ):
        assert wanted.any() and torch.equal(slots, wanted)
        assert torch.equal(interpreter.views.tensor(Value(RESTART_COPY, (layer,))), wanted)
    assert loaded.expert_bytes > 0 and resident.position.filled()[RESTART_COPY]


def test_the_next_engine_takes_them_from_the_copy_and_reads_none(resident: Machine) -> None:
    first, _ = resident.engine()
    second, loaded = resident.engine()
    assert loaded.expert_bytes == 0 and loaded.dense_bytes > 0
    assert "experts of the engine before" in resident.phases
    for slots, wanted in zip(
        experts(resident.plan, second), experts(resident.plan, first), strict=True
    ):
        assert torch.equal(slots, wanted)


@pytest.mark.parametrize("profile", ["tiny-cpu-resident", "tiny-cpu"])
def test_a_load_that_fails_leaves_nothing_that_looks_filled(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(compiled(profile))
    [kept] = {"bank", RESTART_COPY} & machine.segments.keys()
    machine.engine()
    before = machine.position.filled()[kept]
    monkeypatch.setattr(loading, "content_digest", lambda *_: "another checkpoint")
    *whole, last = machine.inventory.experts
    broken = replace(machine.inventory, experts=(*whole, spoilt(last)))
    with pytest.raises(LoadError):
        machine.engine(broken)
    assert before and machine.position.filled()[kept] == ""
    machine.close()


def spoilt(item: ExpertItem) -> ExpertItem:
    """Its last matrix lies in a file that is not there."""
    *others, last = item.parts
    weight = replace(last.weight, file="nowhere.safetensors")
    return replace(item, parts=(*others, replace(last, weight=weight)))


def test_what_a_copy_to_the_slots_meets_ends_the_start(
    resident: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> torch.Tensor:
        return torch.empty(0)

    monkeypatch.setattr(loading, "resident_slots", refuse)
    with pytest.raises(RuntimeError, match="size"):
        resident.engine()
