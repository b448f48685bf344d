"""Run as a program: loads a checkpoint that it writes, cold, between plain reads of the same file; says how it went.

Arguments: a folder, layers (453 MB each: 256 experts of Qwen3.6's size), rounds. Nothing goes through the page cache.
"""

import ctypes
import gc
import json
import mmap
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import torch

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.places import Weight
from firmtoken.runtime.weights.load import load
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.runtime.weights.reading import BUFFER_BYTES, READERS, large_pages

HIDDEN, WIDTH, EXPERTS = 2048, 512, 256
MATRICES = (("gate", WIDTH, HIDDEN), ("up", WIDTH, HIDDEN), ("down", HIDDEN, WIDTH))
SOURCE = "model.layers.{l}.mlp.experts.{e}."
CHUNK = 16 * 2**20
SAFETENSORS_ORDER = ("F32", "F8_E4M3", "U8")
"""Within a file tensors of one dtype lie together."""
KIB = 1024


def tensors(layers: int) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
    """Name, dtype, shape, bytes."""
    for layer in range(layers):
        for expert in range(EXPERTS):
            for matrix, num_rows, columns in MATRICES:
                stem = SOURCE.format(l=layer, e=expert) + f"{matrix}_proj."
                half, blocks = columns // 2, columns // 16
                yield stem + "weight", "U8", (num_rows, half), num_rows * half
                yield stem + "weight_scale", "F8_E4M3", (num_rows, blocks), num_rows * blocks
                yield stem + "weight_scale_2", "F32", (), 4
                yield stem + "input_scale", "F32", (), 4


def write_checkpoint(folder: Path, layers: int) -> Path:
    """One file, in the order that the safetensors library writes; valid numbers, no model."""
    rows = sorted(tensors(layers), key=lambda row: (SAFETENSORS_ORDER.index(row[1]), row[0]))
    header: dict[str, Any] = {}
    sizes = dict.fromkeys(SAFETENSORS_ORDER, 0)
    end = 0
    for name, dtype, shape, size in rows:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
        sizes[dtype] += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    patterns = {
        "F32": torch.full((CHUNK // 4,), 1e-4).view(torch.uint8),
        "F8_E4M3": torch.randint(0x20, 0x40, (CHUNK,), dtype=torch.uint8),
        "U8": torch.randint(0, 256, (CHUNK,), dtype=torch.uint8),
    }
    contents = [len(text).to_bytes(8, "little"), text]
    contents += [
        piece for dtype in SAFETENSORS_ORDER for piece in cut(patterns[dtype], sizes[dtype])
    ]
    write_directly(path, contents)
    return path


def cut(pattern: torch.Tensor, size: int) -> Iterator[memoryview]:
    for start in range(0, size, CHUNK):
        yield memoryview(pattern.numpy())[: min(CHUNK, size - start)]


def write_directly(path: Path, contents: list[Any]) -> None:
    """Past the page cache, in whole blocks; the last one is cut off afterwards."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    block, filled, written = mmap.mmap(-1, CHUNK), 0, 0
    for content in contents:
        rest = memoryview(content)
        while rest:
            taken = rest[: CHUNK - filled]
            block[filled : filled + len(taken)] = taken
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == CHUNK:
                written, filled = written + os.write(descriptor, block), 0
    written += os.write(descriptor, block) - CHUNK + filled
    os.truncate(path, written)
    os.fsync(descriptor)
    os.close(descriptor)


def read_plainly(path: Path) -> float:
    """Seconds of as many readers with buffers of the same size, which do nothing with what they read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    size = path.stat().st_size
    buffers = SimpleQueue[mmap.mmap]()
    for _ in range(READERS):
        # Private and in large pages, as ours are; and given back at the end, so that it does not count as ours.
        buffer = mmap.mmap(-1, BUFFER_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        buffer.madvise(mmap.MADV_HUGEPAGE)
        buffers.put(buffer)

    def read(start: int) -> None:
        buffer = buffers.get()
        os.preadv(descriptor, [buffer], start)
        buffers.put(buffer)

    begun = time.monotonic()
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, range(0, size, BUFFER_BYTES)))
    seconds = time.monotonic() - begun
    os.close(descriptor)
    return seconds


def make_plan(layers: int) -> Any:
    """The fields of a plan that loading reads: banks of NVFP4 experts, no dense weights."""
    parts = slot_parts("nvfp4", HIDDEN, WIDTH)
    return SimpleNamespace(
        weights=(),
        model=SimpleNamespace(layer_kinds=("full",) * layers),
        kv_cache=SimpleNamespace(dtype="fp32"),
        experts=SimpleNamespace(
            placement="offload",
            slots_per_layer=(1,) * layers,
            per_layer=EXPERTS,
            slot_bytes=slot_bytes(parts),
            slot_parts=parts,
            format="nvfp4",
            sources=tuple(f"{SOURCE}{name}_proj" for name, _, _ in MATRICES),
        ),
    )


class Banks:
    """Memory that was there before, as an engine's is."""

    def __init__(self, plan: Any) -> None:
        shape = (plan.experts.per_layer, plan.experts.slot_bytes)
        self.banks = [torch.empty(shape, dtype=torch.uint8).zero_() for _ in plan.model.layer_kinds]

    def sections(self, weight: Weight, ordinal: int) -> dict[str, torch.Tensor]:
        raise AssertionError("there are no dense weights")

    def experts(self, layer: int) -> torch.Tensor:
        return self.banks[layer]

    def filled(self, layer: int) -> None:
        """Nothing waits for it."""

    def buffer(self, size: int) -> torch.Tensor:
        return large_pages(size)


class Watch:
    """The most memory of this process, files not counted, and the most of its open files, while it lives."""

    def __init__(self) -> None:
        self.most_bytes = self.most_files = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.most_bytes = max(self.most_bytes, own_bytes())
            self.most_files = max(self.most_files, len(os.listdir("/proc/self/fd")))  # noqa: PTH208


def own_bytes() -> int:
    """Anonymous and shared memory of this process."""
    found = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name in ("RssAnon", "RssShmem"):
            found += int(amount.removesuffix("kB")) * KIB
    return found


def cached_bytes(path: Path) -> int:
    """Of the file, in the page cache: asked with `mincore`, for a read would change the answer."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None)
    with (
        path.open("r+b") as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as memory,
    ):
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def main(folder: Path, layers: int, rounds: int) -> dict[str, Any]:
    path = write_checkpoint(folder, layers)
    plan, size = make_plan(layers), path.stat().st_size
    plain, loading, watches = [], [], []
    begun = time.monotonic()
    inventory = preflight(plan, folder)
    preflight_s = time.monotonic() - begun
    for _ in range(rounds):
        plain.append(read_plainly(path))
        gc.collect()
        before, banks = own_bytes(), Banks(plan)
        with Watch() as watch:
            begun = time.monotonic()
            load(plan, inventory, banks, lambda *_: None)
            loading.append(time.monotonic() - begun)
        watches.append(watch)
        del banks
    weights = layers * EXPERTS * plan.experts.slot_bytes
    size_in_cache = cached_bytes(path)
    path.unlink()  # pytest keeps the folders of its last runs
    return {
        "bytes": size,
        "weights": weights,
        "preflight_s": preflight_s,
        "plain_s": plain,
        "load_s": loading,
        "share_of_the_disks_rate": statistics.median(plain) / statistics.median(loading),
        "best_share": min(plain) / min(loading),
        "bytes_before": before,
        "most_bytes": max(watch.most_bytes for watch in watches),
        "most_files": max(watch.most_files for watch in watches),
        "cached": size_in_cache,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
