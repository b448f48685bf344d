"""Writes a synthetic checkpoint to a folder: shards, index, configs, tokenizer. Memory does not grow with its size."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from firmtoken.runtime.weights.checkpoint import INDEX, MADE_UP
from firmtoken.runtime.weights.declared import CONFIG, SEPARATE
from firmtoken.runtime.weights.header import LENGTH_BYTES
from firmtoken.runtime.weights.layout import LaidTensor
from firmtoken.runtime.weights.synthetic import SyntheticWeights, num_bytes
from firmtoken.runtime.weights.synthetic_config import config_json, quantisation_json
from firmtoken.runtime.weights.synthetic_text import text_files
from firmtoken.schema.model import Model

SHARD_BYTES = 5 * 10**9
"""Of one file; a usual size of published ones."""
WRITE_BYTES = 8 * 2**20
"""At most in one write: small tensors are joined, large ones cut."""
THREADS = 8
"""Numbers are made while others are written."""
HEADER_ALIGNMENT = 8
ORDER = ("F32", "BF16", "F8_E4M3", "U8")
"""As safetensors' own writer sorts, then by name: loading a file costs what loading a published one does."""

Progress = Callable[[int], None]
"""Called with the bytes of tensors written so far, by the thread that began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file: its tensors in the order of their data."""

    name: str
    tensors: tuple[LaidTensor, ...]

    @property
    def header(self) -> bytes:
        """Length and JSON, as safetensors wants them."""
        entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for tensor in self.tensors:
            end = offset + num_bytes(tensor)
            entries[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": (offset, end),
            }
            offset = end
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        return len(text).to_bytes(LENGTH_BYTES, "little") + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some bytes of a tensor."""

    name: str
    first: int
    bytes: int


def plan_shards(tensors: Iterable[LaidTensor], shard_bytes: int = SHARD_BYTES) -> tuple[Shard, ...]:
    """The layout cut into files, in its order; a tensor that is larger than a shard has one for itself."""
    cuts: list[list[LaidTensor]] = [[]]
    filled = 0
    for tensor in tensors:
        size = num_bytes(tensor)
        if cuts[-1] and filled + size > shard_bytes:
            cuts.append([])
            filled = 0
        cuts[-1].append(tensor)
        filled += size
    return tuple(
        Shard(
            name=f"model-{number:05d}-of-{len(cuts):05d}.safetensors",
            tensors=tuple(sorted(cut, key=lambda one: (ORDER.index(one.dtype), one.name))),
        )
        for number, cut in enumerate(cuts, start=1)
    )


def small_files(model: Model, weights: SyntheticWeights, shards: Sequence[Shard]) -> dict[str, str]:
    """Everything but the shards; raises `LoadError` as `text_files` does."""
    files = text_files(model)
    files[CONFIG] = _json(config_json(model))
    quantisation = quantisation_json(model, weights.tensors.values())
    if quantisation is not None:
        files[SEPARATE] = _json(quantisation)
    weight_map = {tensor.name: shard.name for shard in shards for tensor in shard.tensors}
    total = sum(map(num_bytes, weights.tensors.values()))
    metadata = {"total_size": total, MADE_UP: True}
    files[INDEX] = _json({"metadata": metadata, "weight_map": weight_map})
    return files


def write_checkpoint(
    folder: Path,
    weights: SyntheticWeights,
    shards: Sequence[Shard],
    files: dict[str, str],
    progress: Progress,
) -> None:
    """All of it, or nothing: `folder` appears when it is complete, and may be there before if it is empty.

    Raises `OSError`.
    """
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
        for name, text in files.items():
            (partial / name).write_text(text, encoding="utf-8")
        _write_shards(partial, weights, shards, progress)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # another program has put something there
            for parent in made:
                parent.rmdir()
        raise


def _write_shards(
    folder: Path, weights: SyntheticWeights, shards: Sequence[Shard], progress: Progress
) -> None:
    done = 0
    for shard in shards:
        with (folder / shard.name).open("wb") as file, ThreadPoolExecutor(THREADS) as pool:
            file.write(shard.header)
            file.flush()
            first = file.tell()
            size = sum(map(num_bytes, shard.tensors))
            os.posix_fallocate(file.fileno(), first, size)  # a full disk is said now
            jobs = [
                pool.submit(_write, file.fileno(), weights, parts, first + offset)
                for parts, offset in _jobs(shard)
            ]
            try:
                for job in as_completed(jobs):
                    done += job.result()
                    progress(done)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _jobs(shard: Shard) -> Iterator[tuple[tuple[Part, ...], int]]:
    """Neighbours that are worth a write together, and where their data begin."""
    job: list[Part] = []
    offset = filled = 0
    for part in _parts(shard):
        if filled + part.bytes > WRITE_BYTES:
            yield tuple(job), offset
            job, offset, filled = [], offset + filled, 0
        job.append(part)
        filled += part.bytes
    if job:
        yield tuple(job), offset


def _parts(shard: Shard) -> Iterator[Part]:
    for tensor in shard.tensors:
        size = num_bytes(tensor)
        for first in range(0, size, WRITE_BYTES):
            yield Part(name=tensor.name, first=first, bytes=min(WRITE_BYTES, size - first))


def _write(descriptor: int, weights: SyntheticWeights, parts: Sequence[Part], offset: int) -> int:
    """Bytes written."""
    data = memoryview(bytearray(sum(part.bytes for part in parts)))
    filled = 0
    for part in parts:
        weights.fill(part.name, part.first, data[filled : filled + part.bytes])
        filled += part.bytes
    written = 0
    while written < len(data):  # a write may take less than it was given
        written += os.pwrite(descriptor, data[written:], offset + written)
    return written


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"
