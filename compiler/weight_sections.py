"""How the bytes of a weight row are laid out: what kernels read as one matrix, whatever its parts are stored as.

Parts of one format are adjacent and keep their own scales, so nothing is quantised anew (facts/models.md 3.8):

    fp8     codes e4m3 [N8, K] | rows bf16 [N16, K] | scales fp32 [parts]      (parts in bf16 come last)
    nvfp4   packed u8 [N, K/2] | scale e4m3 [N, K/16] | globals fp32 [parts]
    else    rows [N, ...]
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from firmtoken.compiler.places import WeightPart
from firmtoken.compiler.tensor_bytes import ELEMENT_BYTES, NVFP4_BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One tensor among the bytes of a weight row."""

    name: str
    offset: int
    """From the first byte of the row."""
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


def weight_sections(shape: Sequence[int], parts: Sequence[WeightPart]) -> dict[str, Section]:
    """Sections of a row of this shape by name, in order; together they are its bytes."""
    found = {}
    offset = 0
    for name, dtype, size in _sections(shape, parts):
        section = Section(name=name, offset=offset, dtype=dtype, shape=size)
        found[name] = section
        offset += section.bytes
    return found


def _sections(
    shape: Sequence[int], parts: Sequence[WeightPart]
) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    rows, *columns = shape
    main = parts[0].format
    others = {part.format for part in parts} - {main}
    if main == "nvfp4":
        assert not others, "NVFP4 has no rows of another format"
        yield "packed", "u8", (rows, columns[0] // 2)
        yield "scale", "fp8", (rows, columns[0] // NVFP4_BLOCK)
        yield "globals", "fp32", (len(parts),)
        return
    if main != "fp8":
        assert not others, f"parts of {main} and {others} are not joined"
        yield "rows", main, tuple(shape)
        return
    coded = [part for part in parts if part.format == main]
    assert others <= {"bf16"} and list(parts[: len(coded)]) == coded, "bf16 rows come last"
    num_coded = sum(part.rows for part in coded)
    yield "codes", "fp8", (num_coded, columns[0])
    if num_coded < rows:
        yield "rows", "bf16", (rows - num_coded, columns[0])
    yield "scales", "fp32", (len(coded),)


def part_starts(parts: Sequence[WeightPart]) -> tuple[int, ...]:
    """First row of each part but the first."""
    starts, row = [], 0
    for part in parts[:-1]:
        row += part.rows
        starts.append(row)
    return tuple(starts)
