"""The header of one safetensors file: 8 bytes of length, JSON, then the data. Read without the data."""

import os
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import parse_json, unreadable
from firmtoken.schema.regular_file import open_regular

ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_RANK = 8
MAX_DIMENSION = 2**48
"""No file holds more; products of such sizes stay numbers that can be printed."""
AGAIN = "the file is damaged; copy or download it again"
NAMED = "the index names this file; copy or download the whole checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """What a file says about one of its tensors."""

    name: str
    file: str
    dtype: str
    """As the format spells it: `BF16`, `F8_E4M3`, `U8`, ..."""
    shape: tuple[int, ...]
    bytes: int
    offset: int
    """Of its first byte, from the start of the file."""

    def rows(self, first: int, count: int) -> "TensorHeader":
        """`count` entries of the first axis, from `first` on: a tensor of its own that lies inside this one."""
        assert first >= 0 and count >= 0 and first + count <= self.shape[0]
        size = self.bytes // self.shape[0]
        return replace(
            self,
            shape=(count, *self.shape[1:]),
            bytes=count * size,
            offset=self.offset + first * size,
        )


def read_header(path: Path) -> dict[str, TensorHeader]:
    """The tensors of a file; raises `LoadError` unless header and length of the file agree."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            length = header_bytes(path.name, file.read(LENGTH_BYTES), size)
            text = file.read(length)
    except OSError as error:
        raise unreadable(path, error, NAMED) from error
    return parse_header(path.name, text, size)


def header_bytes(file: str, beginning: bytes, size: int) -> int:
    """Bytes of JSON in a file of `size` bytes whose first `LENGTH_BYTES` are given; raises `LoadError`."""
    length = int.from_bytes(beginning, "little")
    if size < LENGTH_BYTES or length > min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
        raise LoadError(
            file=file,
            expected="a safetensors header",
            found=f"{size} bytes that do not begin with one",
            hint=AGAIN,
        )
    return length


def parse_header(file: str, text: bytes, size: int) -> dict[str, TensorHeader]:
    """The tensors of a file of `size` bytes from the JSON of its header, wherever that was read."""
    data = LENGTH_BYTES + len(text)
    headers = {
        name: _parse_entry(file, name, entry, data)
        for name, entry in _parse_json(file, text).items()
        if name != "__metadata__"
    }
    end = _tile(headers.values(), data)
    if end != size:
        raise LoadError(
            file=file,
            expected=f"{end - data} bytes of data after the header",
            found=f"{size - data}",
            hint=AGAIN,
        )
    return headers


def _parse_json(file: str, text: bytes) -> dict[str, object]:
    try:
        entries = parse_json(text)
    except ValueError as error:
        raise LoadError(
            file=file, expected="a JSON header", found=f"text that is not JSON: {error}", hint=AGAIN
        ) from error
    if not isinstance(entries, dict):
        raise LoadError(file=file, expected="a JSON object", found="another value", hint=AGAIN)
    return entries


def _tile(headers: Iterable[TensorHeader], data: int) -> int:
    # Where the last tensor ends; each must begin where the one before it ends.
    last = data
    for header in sorted(headers, key=lambda header: (header.offset, header.bytes)):
        if header.offset != last:
            raise LoadError(
                file=header.file,
                tensor=header.name,
                expected=f"data from offset {last - data}, where the tensor before it ends",
                found=f"offset {header.offset - data}",
                hint=AGAIN,
            )
        last = header.offset + header.bytes
    return last


def _parse_entry(file: str, name: str, entry: object, data: int) -> TensorHeader:
    # `data`: where the file's data begin, from which its header counts.
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            dtype in ITEM_BYTES
            and len(shape) <= MAX_RANK
            and all(type(size) is int and 0 <= size < MAX_DIMENSION for size in shape)
            and max(abs(begin), abs(end)) < MAX_DIMENSION
        ):
            needed = prod(shape) * ITEM_BYTES[dtype]
        case _:
            raise LoadError(
                file=file,
                tensor=name,
                expected="a known dtype, a shape and two offsets",
                found=reprlib.repr(entry)[:80],
                hint=AGAIN,
            )
    if begin < 0 or end - begin != needed:
        raise LoadError(
            file=file,
            tensor=name,
            expected=f"{needed} bytes for {dtype} {shape}",
            found=f"offsets {begin} to {end}",
            hint=AGAIN,
        )
    return TensorHeader(
        name=name,
        file=file,
        dtype=dtype,
        shape=tuple(shape),
        bytes=needed,
        offset=data + begin,
    )
