"""`Placement`: a value's name and indices to bytes in a space, by the rows of `buffers[]` (D5)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from firmtoken.compiler.places import Buffer
from firmtoken.compiler.program import Value
from firmtoken.compiler.race import Place


class NoPlace(LookupError):
    """A value that no buffer row places: its name or an index is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Buffers by name, and the layers of each axis."""

    buffers: dict[str, Buffer]
    ordinals: dict[str, dict[int, int]]
    """Axis -> layer -> ordinal on that axis; axes that count from 0 by themselves are absent."""

    def buffer(self, value: Value) -> Buffer:
        """The row of this value's name; raises `NoPlace`."""
        row = self.buffers.get(value.name)
        if row is None:
            raise NoPlace(f"`{value}` has no buffer")
        if len(row.index) != len(value.index):
            raise NoPlace(f"`{value}` has {len(value.index)} indices, its buffer {len(row.index)}")
        return row

    def span(self, value: Value) -> tuple[int, int]:
        """Offset in its space and bytes."""
        row = self.buffer(value)
        if row.places:
            ordinal = self._ordinal(row.index[0], value.index[0], value)
            if ordinal >= len(row.places):
                raise NoPlace(f"`{value}` has no place among {len(row.places)}")
            return row.places[ordinal]
        offset = row.offset
        for axis, index, stride, ring in zip(
            row.index, value.index, row.stride, row.ring, strict=True
        ):
            place = index % ring if ring else self._ordinal(axis, index, value)
            offset += place * stride
        return offset, row.bytes

    def place(self, value: Value) -> Place:
        """Bytes for the checker; an owner index makes an arena of its own (A3)."""
        row = self.buffer(value)
        offset, size = self.span(value)
        arena = row.space
        if "owner" in row.index:
            arena += f"/{value.index[row.index.index('owner')]}"
        return Place(arena, offset, offset + size)

    def persistent(self, value: Value) -> bool:
        """Whether it holds something before any launch."""
        return self.buffer(value).kind in ("persistent", "host", "pinned")

    def one_tile(self, value: Value) -> bool:
        """Whether it has rows for one tile only."""
        return self.buffer(value).shape[:1] == ("tile",)

    def view_of(self, value: Value) -> tuple[Value, ...]:
        """The values whose change voids this one."""
        return tuple(
            Value(name, value.index[: len(self.buffers[name].index)])
            for name in self.buffer(value).view_of
        )

    def _ordinal(self, axis: str, index: int, value: Value) -> int:
        layers = self.ordinals.get(axis)
        if layers is None:
            return index
        if index not in layers:
            raise NoPlace(f"`{value}`: layer {index} is not on axis `{axis}`")
        return layers[index]


def placement(buffers: Iterable[Buffer], layer_kinds: Sequence[str]) -> Placement:
    """Placement of these rows for a model with these layers."""
    ordinals: dict[str, dict[int, int]] = {}
    for axis in ("linear", "full"):
        layers = [layer for layer, kind in enumerate(layer_kinds) if kind == axis]
        ordinals[axis] = {layer: ordinal for ordinal, layer in enumerate(layers)}
    ordinals["owner"] = {0: 0, 1: 0}  # disjoint pages and slots of the same bytes
    return Placement(buffers={row.name: row for row in buffers}, ordinals=ordinals)
