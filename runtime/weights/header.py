"""The header of one safetensors file: 8 bytes of length, JSON, then the data. Read without the data."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import parse_json, regular_size, unreadable

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


def read_header(path: Path) -> dict[str, TensorHeader]:
    """The tensors of a file; raises `LoadError` unless header and length of the file agree."""
    entries, data_bytes = _read_entries(path)
    headers = {}
    extents = {}
    for name, entry in entries.items():
        if name == "__metadata__":
            continue
        headers[name], extents[name] = _parse_entry(path.name, name, entry)
    end = _tile(path.name, extents)
    if end != data_bytes:
        raise LoadError(
            file=path.name,
            expected=f"{end} bytes of data after the header",
            found=f"{data_bytes}",
            hint=AGAIN,
        )
    return headers


def _read_entries(path: Path) -> tuple[dict[str, object], int]:
    # The header as JSON, and how many bytes follow it.
    size = regular_size(path, NAMED)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(MAX_HEADER_BYTES, size - LENGTH_BYTES):
                raise LoadError(
                    file=path.name,
                    expected="a safetensors header",
                    found=f"{size} bytes that do not begin with one",
                    hint=AGAIN,
                )
            text = file.read(length)
    except OSError as error:
        raise unreadable(path, error, NAMED) from error
    return _parse_json(path.name, text), size - LENGTH_BYTES - length


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


def _tile(file: str, extents: Mapping[str, tuple[int, int]]) -> int:
    # Where the last tensor ends; each must begin where the one before it ends.
    last = 0
    for name, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
        if begin != last:
            raise LoadError(
                file=file,
                tensor=name,
                expected=f"data from offset {last}, where the tensor before it ends",
                found=f"offset {begin}",
                hint=AGAIN,
            )
        last = end
    return last


def _parse_entry(file: str, name: str, entry: object) -> tuple[TensorHeader, tuple[int, int]]:
    # The tensor, and where its data begin and end.
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
    header = TensorHeader(name=name, file=file, dtype=dtype, shape=tuple(shape), bytes=needed)
    return header, (begin, end)
