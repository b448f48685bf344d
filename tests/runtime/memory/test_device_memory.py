"""What a GPU's engine holds, against its plan; driver and allocator are made up."""

import ctypes
import os
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.engine.child import describe
from firmtoken.runtime.exit_codes import REFUSED
from firmtoken.runtime.memory import device_memory
from firmtoken.runtime.memory.arena import NoMemory
from firmtoken.runtime.memory.device_memory import (
    MIB,
    DeviceMemory,
    MoreThanPlanned,
    compared,
    drop_stacks,
    open_device,
)
from firmtoken.runtime.memory.gpus import FoundGpu, Holder, NoNvml

GIB = 2**30
TOTAL = 140 * GIB
OTHER = Holder(pid=os.getpid() + 1, bytes=3 * GIB)
SMALL = ("hardware.gpu.memory=24GiB",)


@dataclass(slots=True)
class Machine:
    """GPUs as the driver tells of them, and what the allocator has."""

    gpus: tuple[FoundGpu, ...]
    reserved: int = 0
    uuid: str = "0"


def gpu(*holders: Holder, taken: int = 0, uuid: str = "GPU-0") -> FoundGpu:
    return FoundGpu(
        index=0,
        name="NVIDIA H200",
        uuid=uuid,
        capability="9.0",
        driver="580.159.04",
        total=TOTAL,
        free=TOTAL - taken,
        holders=holders,
    )


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(gpus=(gpu(OTHER, taken=OTHER.bytes),))
    monkeypatch.setattr(device_memory, "find_gpus", lambda: found.gpus)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: found.reserved)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: SimpleNamespace(uuid=found.uuid, total_memory=TOTAL),
    )
    return found


@pytest.fixture(scope="module")
def plan() -> Plan:
    return compile_argument("h200-qwen", SMALL).plan


def arena_bytes(plan: Plan) -> int:
    return sum(space.bytes for space in plan.spaces if space.memory == "device")


def started(plan: Plan, machine: Machine, rest: int, **others: int) -> str:
    """An engine that holds so much beside its arena says what it holds."""
    memory = DeviceMemory()
    arena = arena_bytes(plan)
    machine.reserved = arena
    holder = Holder(pid=others.get("pid", os.getpid()), bytes=others.get("told", arena + rest))
    taken = OTHER.bytes + arena + rest + others.get("grown", 0)
    machine.gpus = (gpu(OTHER, holder, taken=taken),)
    return compared(plan, memory, arena)


def planned_rest(plan: Plan) -> int:
    return plan.memory.device.total - arena_bytes(plan)


def test_what_is_held_is_told_part_by_part(machine: Machine, plan: Plan) -> None:
    arena, rest = arena_bytes(plan), planned_rest(plan) - 100 * MIB
    assert started(plan, machine, rest) == (
        f"device memory: {(arena + rest) / MIB:,.0f} MiB held, 24,320 may be: arena {arena / MIB:,.0f} as planned,"
        f" 0 beside it in the allocator; context, modules and graphs {rest / MIB:,.0f}"
        f" ({planned_rest(plan) / MIB:,.0f} planned, 128 of it as a margin)"
    )


def test_what_the_allocator_has_beside_the_arena_is_told_apart(
    machine: Machine, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: arena_bytes(plan) + 20 * MIB)
    assert " 20 beside it in the allocator" in started(plan, machine, 500 * MIB)


def test_more_than_the_budget_is_refused_and_the_hint_makes_a_plan_that_starts(
    machine: Machine, plan: Plan
) -> None:
    rest = planned_rest(plan) + 700 * MIB
    before = machine.gpus
    with pytest.raises(MoreThanPlanned, match=r"holds more of the GPU .* 25,\d{3} MiB") as refused:
        started(plan, machine, rest)
    fault = describe(refused.value)
    assert (fault.code, fault.hint) == (REFUSED, refused.value.hint)
    machine.gpus = before
    [field] = re.findall(r"--set ([^\s`]+)`", fault.hint)
    beside = compile_argument("h200-qwen", (*SMALL, field)).plan
    assert "MiB held" in started(beside, machine, rest)
    assert planned_rest(beside) - rest >= 127 * MIB  # the margin is still one


def test_one_byte_decides(machine: Machine, plan: Plan) -> None:
    room = plan.memory.device.budget - arena_bytes(plan)
    before = machine.gpus
    assert started(plan, machine, room)
    machine.gpus = before
    with pytest.raises(MoreThanPlanned):
        started(plan, machine, room + 1)


def test_in_a_container_the_new_process_is_ours_whatever_its_number(
    machine: Machine, plan: Plan
) -> None:
    with pytest.raises(MoreThanPlanned):
        started(plan, machine, planned_rest(plan) + GIB, pid=1)


def test_where_the_driver_counts_no_process_others_may_be_in_it_and_nothing_is_refused(
    machine: Machine, plan: Plan
) -> None:
    told = started(plan, machine, planned_rest(plan), told=0, grown=2 * GIB)
    assert told.endswith("; what other programs took since the start is counted, too")
    assert told.startswith(f"device memory: {(plan.memory.device.total + 2 * GIB) / MIB:,.0f} MiB")


def test_of_several_gpus_the_one_that_cuda_uses_counts(machine: Machine, plan: Plan) -> None:
    arena = arena_bytes(plan)
    machine.gpus = (gpu(uuid="GPU-0"), gpu(uuid="GPU-1"))
    memory = DeviceMemory()
    machine.gpus, machine.reserved = (gpu(uuid="GPU-0"), gpu(taken=arena, uuid="GPU-1")), arena
    machine.uuid = "1"
    assert memory.held(arena).process == arena
    machine.uuid = "2"
    assert compared(plan, memory, arena).endswith("does not show the GPU that CUDA uses")


def test_a_driver_that_cannot_be_asked_is_told(
    machine: Machine, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise NoNvml("the driver does not answer", "load it")

    monkeypatch.setattr(device_memory, "find_gpus", refuse)
    told = compared(plan, DeviceMemory(), arena_bytes(plan))
    assert told == "device memory is not measured: the driver does not answer"


def test_a_driver_that_answers_no_more_is_told(
    machine: Machine, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = DeviceMemory()

    def refuse() -> None:
        raise NoNvml("the GPU is lost", "load it")

    monkeypatch.setattr(device_memory, "find_gpus", refuse)
    told = compared(plan, memory, arena_bytes(plan))
    assert told == "device memory is not measured: the GPU is lost"


def test_a_start_gets_the_arena_and_what_graphs_and_the_margin_will_be(
    machine: Machine, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[float] = []
    monkeypatch.setattr(device_memory, "drop_stacks", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", bounds.append)
    assert open_device(plan) is not None
    lines = {line.name: line.bytes for line in plan.memory.device.lines}
    due = arena_bytes(plan) + lines["graphs"] + lines["margin"]
    assert bounds == [pytest.approx(due / TOTAL, abs=1 / TOTAL)]


@pytest.mark.parametrize("error", [0, 215])
def test_threads_of_the_gpu_get_no_stacks_or_it_is_said(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    asked: list[tuple[int, int]] = []

    def set_limit(limit: int, size: ctypes.c_size_t) -> int:
        asked.append((limit, size.value))
        return error

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(cuCtxSetLimit=set_limit))
    if error:
        with pytest.raises(NoMemory, match="stacks of threads: CUDA error 215"):
            drop_stacks()
    else:
        drop_stacks()
    assert asked == [(0, 0)]


def test_a_cpu_has_no_memory_of_a_gpu() -> None:
    assert open_device(compile_argument("tiny-cpu", ()).plan) is None
