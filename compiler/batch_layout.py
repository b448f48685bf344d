"""What the host hands to a GPU for one program: which number lies where, so that one copy brings all of it.

Kernels read a batch at fixed addresses, in tensors (`runtime/kernels/device_rows.py`); a captured program reads the
same bytes at every replay. Page tables come last: they change seldom, and a decode step leaves them out then.

What a launch is given begins at a multiple of 16 bytes, whichever launch it is and whichever sequence is its first: a
compiler makes another form of a kernel for an address that does not, in the midst of serving. So what launches have of
their own, and page tables, lie in rows of whole 16 bytes.

Legend: S sequences, N rows, P pages of the longest sequence, L launches with rows of their own (tiles, then the chunk).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from firmtoken.compiler.tensor_bytes import ELEMENT_BYTES, align_up

FIELD_ALIGN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One tensor of a batch."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """All tensors of a batch by name."""

    fields: dict[str, Field]

    @property
    def bytes(self) -> int:
        """All of them."""
        return max(
            field.offset + align_up(field.bytes, FIELD_ALIGN) for field in self.fields.values()
        )


def decode_layout(*, sequences: int, pages: int) -> BatchLayout:
    """One row a sequence."""
    return _placed(
        (
            *_rows(sequences),
            ("sequences", "int32", (sequences,)),
            *_launches((), sequences),
            *_of_sequences(sequences, pages),
        )
    )


def span_layout(*, rows: int, tiles: int, sequences: int, pages: int) -> BatchLayout:
    """A chunk of rows in tiles; launches of a tile and of the chunk number the sequences that they have from 0."""
    return _placed(
        (
            *_rows(rows),
            ("tile_sequences", "int32", (rows,)),
            ("chunk_sequences", "int32", (rows,)),
            ("copies", "int32", (sequences, 2)),
            ("restores", "int32", (sequences, 3)),
            *_launches((tiles + 1,), sequences),
            *_of_sequences(sequences, pages),
        )
    )


def batch_layouts(
    *, rows: int, tile: int, sequences: int, positions: int, page_size: int
) -> tuple[BatchLayout, BatchLayout]:
    """Of a decode step and of a chunk of a span, for sequences of up to `positions` tokens."""
    pages = -(-positions // page_size)
    return (
        decode_layout(sequences=sequences, pages=pages),
        span_layout(rows=rows, tiles=-(-rows // tile), sequences=sequences, pages=pages),
    )


Shaped = tuple[str, str, tuple[int, ...]]


def _rows(rows: int) -> Iterator[Shaped]:
    yield "token_ids", "int32", (rows,)
    yield "positions", "int32", (rows,)
    yield "token_slots", "int64", (rows,)


def _launches(launches: tuple[int, ...], sequences: int) -> Iterator[Shaped]:
    for name, numbers in (
        ("num_rows", 1),
        ("first_rows", sequences + 1),
        ("starts", sequences),
        ("live", sequences),
        ("shadow", sequences),
        ("boundary", sequences),
    ):
        yield name, "int32", (*launches, _whole(numbers))


def _of_sequences(sequences: int, pages: int) -> Iterator[Shaped]:
    for name, dtype in (
        ("temperature", "fp32"),
        ("top_p", "fp32"),
        ("top_k", "int32"),
        ("min_p", "fp32"),
        ("seed", "int64"),
        ("position", "int64"),
    ):
        yield name, dtype, (sequences,)
    yield "pages", "int32", (sequences, _whole(pages))


def _whole(numbers: int) -> int:
    """So many numbers of four bytes, or some more, that the next row is aligned too."""
    return align_up(numbers * ELEMENT_BYTES["int32"], FIELD_ALIGN) // ELEMENT_BYTES["int32"]


def _placed(shaped: tuple[Shaped, ...]) -> BatchLayout:
    fields = {}
    offset = 0
    for name, dtype, shape in shaped:
        fields[name] = Field(offset=offset, dtype=dtype, shape=shape)
        offset += align_up(fields[name].bytes, FIELD_ALIGN)
    return BatchLayout(fields=fields)
