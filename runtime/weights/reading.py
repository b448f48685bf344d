"""The bytes of many tensors, in the order of the files, several large reads in flight; knows no format and no plan."""

import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import torch

from firmtoken.runtime.weights.disk import BLOCK, Cut, is_cached, read_part
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import unreadable
from firmtoken.runtime.weights.header import AGAIN, TensorHeader

READERS = 8
"""Reads in flight, but for those whose bytes are put in place. Sixteen of half the size load more slowly on two cores:
they spend half as much again on waiting for the interpreter."""
BUFFER_BYTES = 16 * 2**20
"""What one of them may read at once; all of them together are within the plan's line `process`."""

Progress = Callable[[str, int, int], None]
"""Called with a phase for people, bytes read so far, and bytes in all; always by the thread that began to read."""
Allocate = Callable[[int], torch.Tensor]
"""Gives uint8 [n] of host memory."""
BytesOf = Callable[[TensorHeader], torch.Tensor]
"""uint8 [bytes] of a tensor, valid until the job that asked is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is done with some tensors, once the bytes of all of them are in memory."""

    tensors: tuple[TensorHeader, ...]
    do: Callable[[BytesOf], None]

    @property
    def bytes(self) -> int:
        """Bytes to read."""
        return sum(tensor.bytes for tensor in self.tensors)

    @property
    def room(self) -> int:
        """Bytes of a buffer that it needs at most: a read begins and ends at a block."""
        return self.bytes + 2 * BLOCK * len(self.tensors)


ReadBatch = Callable[[Sequence[Job], torch.Tensor], BytesOf]
"""Brings the tensors of some jobs to a buffer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Neighbours in a file."""

    tensors: tuple[TensorHeader, ...]

    @property
    def first(self) -> int:
        """The block boundary at or below the first byte."""
        return self.tensors[0].offset // BLOCK * BLOCK

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return max(tensor.offset + tensor.bytes for tensor in self.tensors)

    @property
    def room(self) -> int:
        """Bytes of whole blocks."""
        return -(-(self.end - self.first) // BLOCK) * BLOCK


def read_all(
    read: ReadBatch,
    jobs: Iterable[Job],
    allocate: Allocate,
    phase: str,
    progress: Progress,
    *,
    threads: int = READERS,
) -> None:
    """Does all jobs; a failure ends it, and is raised once what runs has ended."""
    batches = list(in_batches(jobs))
    total = sum(job.bytes for batch in batches for job in batch)
    done = 0
    progress(phase, done, total)
    buffers = SimpleQueue[torch.Tensor]()
    for _ in range(min(threads, len(batches))):
        buffers.put(on_a_block(allocate(BUFFER_BYTES + BLOCK)))
    with one_thread_for_each_op(), ThreadPoolExecutor(threads) as pool:
        sizes = {
            pool.submit(do_batch, read, batch, buffers): sum(job.bytes for job in batch)
            for batch in batches
        }
        try:
            for future in as_completed(sizes):
                if future.exception() is not None:
                    break
                done += sizes[future]
                progress(phase, done, total)
        finally:
            pool.shutdown(cancel_futures=True)
    raise_first(sizes)


def raise_first(futures: Iterable[Future[None]]) -> None:
    """Of several faults the first in the files' order, as each time: batches begin in that order."""
    for future in futures:
        if not future.cancelled():
            future.result()


def in_batches(jobs: Iterable[Job]) -> Iterator[tuple[Job, ...]]:
    """Jobs whose tensors fit into one buffer, in the order in which the files have the first of each."""
    batch: list[Job] = []
    room = 0
    for job in sorted(jobs, key=lambda job: (job.tensors[0].file, job.tensors[0].offset)):
        assert job.room <= BUFFER_BYTES, f"{job.tensors[0].name} was not cut"
        if room + job.room > BUFFER_BYTES:
            yield tuple(batch)
            batch, room = [], 0
        batch.append(job)
        room += job.room
    if batch:
        yield tuple(batch)


def do_batch(read: ReadBatch, jobs: Sequence[Job], buffers: "SimpleQueue[torch.Tensor]") -> None:
    """Reads what these jobs need, and does them."""
    memory = buffers.get()
    try:
        with torch.inference_mode():
            bytes_of = read(jobs, memory)
            for job in jobs:
                job.do(bytes_of)
    finally:
        buffers.put(memory)


def files_reader(folder: Path, files: Iterable[str]) -> ReadBatch:
    """Reads tensors of these files."""
    return partial(
        read_batch, folder, frozenset(file for file in files if is_cached(folder / file))
    )


def read_batch(
    folder: Path, cached: Collection[str], jobs: Sequence[Job], memory: torch.Tensor
) -> BytesOf:
    """The tensors of these jobs in `memory`; `cached`: files that are in the page cache."""
    view = memory.numpy().data
    places: dict[TensorHeader, int] = {}
    start = 0
    for read in reads({tensor for job in jobs for tensor in job.tensors}):
        file = read.tensors[0].file
        perform(folder / file, read, view[start : start + read.room], cached=file in cached)
        for tensor in read.tensors:
            places[tensor] = start + tensor.offset - read.first
        start += read.room

    def bytes_of(tensor: TensorHeader) -> torch.Tensor:
        begin = places[tensor]
        return memory[begin : begin + tensor.bytes]

    return bytes_of


def reads(tensors: Iterable[TensorHeader]) -> Iterator[Read]:
    """Tensors that share or adjoin blocks of a file are read together."""
    group: list[TensorHeader] = []
    file, end = "", 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.file, tensor.offset)):
        if group and (tensor.file != file or tensor.offset // BLOCK * BLOCK > end):
            yield Read(tensors=tuple(group))
            group, end = [], 0
        group.append(tensor)
        file, end = tensor.file, max(end, -(-(tensor.offset + tensor.bytes) // BLOCK) * BLOCK)
    if group:
        yield Read(tensors=tuple(group))


def perform(path: Path, read: Read, memory: memoryview, *, cached: bool) -> None:
    """One read; a fault names the tensor at which it came."""
    try:
        read_part(path, read.first, read.end - read.first, memory, cached=cached)
    except Cut as cut:
        reached = read.first + cut.after
        tensor = next(each for each in read.tensors if each.offset + each.bytes > reached)
        raise LoadError(
            file=path.name,
            tensor=tensor.name,
            expected="readable data",
            found=str(cut),
            hint=AGAIN,
        ) from cut
    except OSError as error:
        raise unreadable(path, error, AGAIN) from error


def large_pages(size: int) -> torch.Tensor:
    """uint8 [size] of this process, a buffer for reads: in small pages each would be thousands of pieces."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)  # which keeps the mapping alive


def on_a_block(memory: torch.Tensor) -> torch.Tensor:
    """`memory` from its first block boundary on."""
    skipped = -memory.data_ptr() % BLOCK
    return memory[skipped : skipped + BUFFER_BYTES]


@contextmanager
def one_thread_for_each_op() -> Iterator[None]:
    """For threads begun inside: they are the parallelism, a team for each of their copies would be threads squared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
