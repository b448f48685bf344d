"""The device arena is one allocation of exactly the bytes that the plan's ledger has for values."""

from functools import lru_cache

import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.tensor_bytes import align_up
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory import arena as arena_module
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile
from firmtoken.schema.references import shipped_names

SHIPPED = [name for name in shipped_names() if "/" not in name]
VENDORS = {"cuda_context", "graphs", "margin", "spills", "workspace.cublas"}
"""What the driver and libraries allocate by themselves."""


@lru_cache
def compiled(name: str) -> Plan:
    return compile_profile(load_profile(f"ft:{name}").profile, CARDS)


def device_arena(plan: Plan) -> Arena:
    """Without bytes: all that is asked are sizes."""
    return Arena([space for space in plan.spaces if space.memory == "device"], {}, "meta")


@pytest.mark.parametrize("name", SHIPPED)
def test_one_allocation_holds_every_line_to_the_byte(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = compiled(name)
    asked: list[int] = []

    def allocate(size: int, device: str = "cpu") -> torch.Tensor:
        asked.append(size)
        return torch.empty(size, dtype=torch.uint8, device="meta")

    monkeypatch.setattr(arena_module, "_private_bytes", allocate)
    arena = device_arena(plan)
    lines = {
        line.name: line.bytes
        for line in plan.memory.device.lines
        if line.name not in VENDORS and line.bytes
    }
    assert asked == [sum(lines.values())]
    spaces = sorted(
        (space for space in plan.spaces if space.memory == "device"), key=lambda one: one.offset
    )
    assert {space.line: space.bytes for space in spaces} == lines
    end = 0
    for space in spaces:  # no gap, so none of it belongs to nobody
        assert space.offset == end
        assert arena.bytes_of(space.name, 0, arena.size(space.name)).numel() == lines[space.line]
        end += space.bytes


@pytest.mark.parametrize("name", SHIPPED)
def test_what_a_line_counts_fills_its_space(name: str) -> None:
    plan = compiled(name)
    sizes = {space.name: space.bytes for space in plan.spaces}
    kinds = plan.model.layer_kinds
    counts = {
        "": 1,
        "layer": len(kinds),
        "linear": kinds.count("linear"),
        "full": kinds.count("full"),
    }
    weights = sum(align_up(row.bytes) * counts[row.axis] for row in plan.weights)
    assert sizes["weights"] == weights
    slots = sum(size for space, size in sizes.items() if space.startswith("experts."))
    assert slots == plan.experts.slot_bytes * sum(
        (plan.experts.slots, plan.experts.staging_slots, plan.experts.overflow_slots)
    )
    for line in plan.memory.device.lines:
        if line.name in ("kv_pages", "states"):
            assert sizes[line.name] == align_up(line.unit_bytes * line.count)


def test_outside_of_a_space_there_is_nothing() -> None:
    plan = compiled("tiny-cpu")
    arena = device_arena(plan)
    size = arena.size("weights")
    with pytest.raises(AssertionError, match="outside of space weights"):
        arena.bytes_of("weights", 1, size)
