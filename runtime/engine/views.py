"""Values and weights as tensors: the plan's addresses, typed, shaped and cut to the rows of a launch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from firmtoken.compiler.placement import placement
from firmtoken.compiler.places import Weight
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.compiler.weight_sections import part_starts, weight_sections
from firmtoken.compiler.workspaces import workspace_line
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots, make_arena
from firmtoken.runtime.kernels.matrices import CodedMatrix, Matrix, PackedMatrix
from firmtoken.runtime.memory.arena import Arena

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int32": torch.int32,
    "int64": torch.int64,
    "u8": torch.uint8,
}
SLOT = "slot"
Operand = Matrix | ExpertSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows of a launch: unit -> first and end row of a buffer whose first shape entry is that unit."""

    tokens: tuple[int, int]
    tile: tuple[int, int]
    pairs: tuple[int, int]
    sequences: tuple[int, int]

    def rows(self, unit: str) -> tuple[int, int]:
        """The rows of one unit."""
        rows: tuple[int, int] = getattr(self, unit)
        return rows


class Views:
    """Full-size views are made once per value; a launch's operand is a cut of one."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        self._arena = arena
        self._places = placement(plan.buffers, plan.model.layer_kinds)
        self._weights = {weight.name: weight for weight in plan.weights}
        self._units = {
            row.name: row.shape[0]
            for row in plan.buffers
            if row.shape and isinstance(row.shape[0], str)
        }
        """What the rows of a buffer are counted in; of others every launch gets all."""
        self._slot_bytes = plan.experts.slot_bytes
        self._slot_spaces = {row.space for row in plan.buffers if row.dtype == SLOT}
        self._first_slot_address, self.experts = self._expert_arena(plan)
        self._full: dict[Value, Operand] = {}

    def full(self, value: Value) -> Operand:
        """The whole value."""
        found = self._full.get(value)
        if found is None:
            found = self._full[value] = self._make(value)
        return found

    def tensor(self, value: Value) -> torch.Tensor:
        """The whole value, which is no range of expert slots."""
        found = self.full(value)
        assert isinstance(found, torch.Tensor)
        return found

    def slots(self, value: Value) -> ExpertSlots:
        """A value that is a range of expert slots."""
        found = self.full(value)
        assert isinstance(found, ExpertSlots)
        return found

    def weight(self, name: str, ordinal: int) -> Matrix:
        """What kernels read of a weight row that is the `ordinal`-th on its axis."""
        weight = self._weights[name]
        sections = self.sections(weight, ordinal)
        match sections:
            case {"codes": codes, "scales": scales}:
                starts = part_starts([part for part in weight.parts if part.format == "fp8"])
                return CodedMatrix(
                    codes=codes, scales=scales, starts=starts, tail=sections.get("rows")
                )
            case {"packed": packed, "scale": scale, "globals": globals_}:
                return PackedMatrix(
                    packed=packed, scale=scale, globals=globals_, starts=part_starts(weight.parts)
                )
            case _:
                return sections["rows"]

    def sections(self, weight: Weight, ordinal: int) -> dict[str, torch.Tensor]:
        """The tensors that a weight row consists of, by the names of `weight_sections`."""
        raw = self._arena.bytes_of(
            weight.space, weight.offset + ordinal * weight.stride, weight.bytes
        )
        return {
            name: raw[section.offset : section.offset + section.bytes]
            .view(DTYPES[section.dtype])
            .view(section.shape)
            for name, section in weight_sections(weight.shape, weight.parts).items()
        }

    def workspace(self, backend: str) -> torch.Tensor:
        """uint8: all bytes that kernels of this backend share."""
        name = workspace_line(backend)
        return self._arena.bytes_of(name, 0, self._arena.size(name))

    def cut(self, value: Value, window: Window) -> Operand:
        """The value's rows of one launch."""
        found = self.full(value)
        unit = self._units.get(value.name)
        if unit is None:
            return found
        assert isinstance(found, torch.Tensor)
        first, end = window.rows(unit)
        assert end <= found.shape[0], f"{value} has {found.shape[0]} rows, {end} wanted"
        return found[first:end]

    def _make(self, value: Value) -> Operand:
        weight = self._weights.get(value.name)
        if weight is not None:
            return self.weight(
                weight.name, self._ordinal(weight.axis, value.index[0]) if weight.axis else 0
            )
        row = self._places.buffer(value)
        offset, size = self._places.span(value)
        if row.dtype == SLOT:
            return self._make_slots(row.space, offset, size)
        raw = self._arena.bytes_of(row.space, offset, size)
        item = DTYPES[row.dtype].itemsize
        lead, *rest = row.shape
        inner = _numbers(rest)
        if isinstance(lead, str):
            lead = size // (prod(inner) * item)
        return raw[: lead * prod(inner) * item].view(DTYPES[row.dtype]).view(lead, *inner)

    def _ordinal(self, axis: str, layer: int) -> int:
        layers = self._places.ordinals.get(axis)
        return layer if layers is None else layers[layer]

    def _make_slots(self, space: str, offset: int, size: int) -> ExpertSlots:
        address = self._arena.address(space) + offset - self._first_slot_address
        assert address % self._slot_bytes == 0 and size % self._slot_bytes == 0
        return ExpertSlots(
            first=address // self._slot_bytes,
            count=size // self._slot_bytes,
            arena=self.experts,
        )

    def _expert_arena(self, plan: Plan) -> tuple[int, ExpertArena]:
        """Where the first slot lies, and all slot spaces as one array of slots: they are neighbours (D8)."""
        spaces = [space for space in plan.spaces if space.name in self._slot_spaces]
        first = min(space.offset for space in spaces)
        end = max(space.offset + space.bytes for space in spaces)
        num_slots = (end - first) // self._slot_bytes
        raw = self._arena.device[first : first + num_slots * self._slot_bytes]
        slots = raw.view(num_slots, self._slot_bytes)
        return first, make_arena(slots, plan.experts.slot_parts)


def _numbers(shape: Sequence[int | str]) -> tuple[int, ...]:
    numbers = tuple(entry for entry in shape if isinstance(entry, int))
    assert len(numbers) == len(shape), f"only the first entry of {shape} may be a unit of rows"
    return numbers
