"""What a checkpoint stores into what a plan keeps: decoded, or codes and scales as they are; none is made anew."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch

from firmtoken.runtime.weights.preflight import DenseItem
from firmtoken.runtime.weights.reader import Reader
from firmtoken.runtime.weights.reading import BytesOf, Job
from firmtoken.runtime.weights.stored import Stored

PIECE_BYTES = 4 * 2**20
"""Of a matrix, decoded at once: codes become 32 MiB in fp32, and each reader holds a few such beside its buffer."""


def dense_jobs(item: DenseItem, sections: Mapping[str, torch.Tensor]) -> Iterator[Job]:
    """One weight row; `sections` are its tensors by the names of `compiler/weight_sections.py`.

    Its matrices lie below each other; each that stays coded keeps its own scale, those that do not follow.
    """
    coded, plain = 0, 0
    for index, (part, kept) in enumerate(zip(item.parts, item.weight.parts, strict=True)):
        for row, piece in pieces(part):
            count = piece.shape[0]
            at, one = slice(coded + row, coded + row + count), slice(index, index + 1)
            match kept.format:
                case "fp8":
                    codes, scale = sections["codes"][at], sections["scales"][one]
                    do = partial(fill_coded, piece, codes, scale)
                case "nvfp4":
                    packed, scale = sections["packed"][at], sections["scale"][at]
                    do = partial(fill_packed, piece, packed, scale, sections["globals"][one])
                case _:
                    rows = sections["rows"][plain + row : plain + row + count]
                    do = partial(fill_numbers, piece, rows, item.weight.add)
            yield Job(tensors=piece.tensors, do=do)
        if kept.format in ("fp8", "nvfp4"):
            coded += kept.rows
        else:
            plain += kept.rows


def pieces(stored: Stored) -> Iterator[tuple[int, Stored]]:
    """The first row of each piece, and the piece."""
    num_rows = stored.shape[0]
    step = max(1, num_rows * PIECE_BYTES // max(1, stored.weight.bytes))
    if step >= num_rows:
        yield 0, stored
        return
    for row in range(0, num_rows, step):
        yield row, stored.rows(row, min(step, num_rows - row))


def fill_numbers(piece: Stored, rows: torch.Tensor, add: float, bytes_of: BytesOf) -> None:
    """Numbers, plus the constant that a zero-centred norm lacks, in fp32."""
    rows.copy_(torch.add(Reader(bytes_of).decode(piece), add).view(rows.shape))


def fill_coded(piece: Stored, codes: torch.Tensor, scale: torch.Tensor, bytes_of: BytesOf) -> None:
    """FP8 codes [N,K] and the scale [1] of their matrix."""
    reader = Reader(bytes_of)
    codes.copy_(reader.read_codes(piece.weight))
    scale.fill_(reader.read_scale(piece.scale))


def fill_packed(
    piece: Stored,
    packed: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    bytes_of: BytesOf,
) -> None:
    """NVFP4 codes u8 [N,K/2], block scales e4m3 [N,K/16], and what the whole matrix is multiplied with [1]."""
    reader = Reader(bytes_of)
    packed.copy_(reader.read(piece.weight))
    scale.copy_(reader.read_blocks(piece.scale))
    global_scale.fill_(reader.read_global(piece))
