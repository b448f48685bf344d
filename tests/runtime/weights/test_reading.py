"""Many tensors: each read once, in the files' order, sixteen reads in flight; the first fault ends it."""

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch

from firmtoken.runtime.weights import disk, reading
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import TensorHeader
from firmtoken.runtime.weights.reader import Reader
from firmtoken.runtime.weights.reading import (
    BUFFER_BYTES,
    READERS,
    BytesOf,
    Job,
    files_reader,
    in_batches,
    read_all,
)


def allocate(size: int) -> torch.Tensor:
    return torch.full((size,), 255, dtype=torch.uint8)


def ignore(phase: str, done: int, total: int) -> None:
    pass


def header(file: str, offset: int, size: int) -> TensorHeader:
    return TensorHeader(
        name=f"{file}:{offset}", file=file, dtype="U8", shape=(size,), bytes=size, offset=offset
    )


def tile(file: str, sizes: Sequence[int], first: int = 0) -> list[TensorHeader]:
    """Tensors of these sizes, one behind the other."""
    found = []
    for size in sizes:
        found.append(header(file, first, size))
        first += size
    return found


def read(folder: Path, jobs: Sequence[Job], progress: reading.Progress = ignore) -> None:
    files = {tensor.file for job in jobs for tensor in job.tensors}
    read_all(files_reader(folder, files), jobs, allocate, "weights", progress)


def nothing(bytes_of: BytesOf) -> None:
    pass


def single(tensor: TensorHeader, do: Callable[[BytesOf], None] = nothing) -> Job:
    return Job(tensors=(tensor,), do=do)


def test_every_tensor_arrives_whatever_its_size_its_place_and_its_neighbours(
    tmp_path: Path,
) -> None:
    dice = random.Random(4)
    contents, tensors = {}, []
    for file in ("a", "b"):
        sizes = [dice.choice((1, 4, 511, 4096, 70_001, 3_000_000)) for _ in range(60)]
        found = tile(file, sizes, first=dice.randrange(9000))
        size = found[-1].offset + found[-1].bytes
        contents[file] = dice.randbytes(size)
        (tmp_path / file).write_bytes(contents[file])
        tensors += found
    dice.shuffle(tensors)
    seen: dict[str, bytes] = {}

    def keep(own: Sequence[TensorHeader], bytes_of: BytesOf) -> None:
        for tensor in own:
            seen[tensor.name] = bytes_of(tensor).numpy().tobytes()

    groups = [tensors[at : at + 3] for at in range(0, len(tensors), 3)]
    jobs = [Job(tensors=tuple(own), do=partial(keep, own)) for own in groups]
    read(tmp_path, jobs)
    for tensor in tensors:
        wanted = contents[tensor.file][tensor.offset : tensor.offset + tensor.bytes]
        assert seen[tensor.name] == wanted
    assert len(seen) == len(tensors)


def test_neighbours_are_read_together_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tile("a", [700_000] * 60, first=100)
    (tmp_path / "a").write_bytes(bytes(100 + 60 * 700_000))
    parts: list[tuple[int, int]] = []
    read_part = reading.read_part

    def note(path: Path, offset: int, needed: int, memory: memoryview, *, cached: bool) -> None:
        parts.append((offset, needed))
        read_part(path, offset, needed, memory, cached=cached)

    monkeypatch.setattr(reading, "read_part", note)
    jobs = [single(tensor) for tensor in tensors]
    random.Random(1).shuffle(jobs)
    read(tmp_path, jobs)
    assert len(parts) == 3  # of 23 tensors, the last of 14: a buffer holds 16 MiB
    assert sum(needed for _, needed in parts) < 60 * 700_000 + 3 * disk.BLOCK
    assert all(needed <= BUFFER_BYTES for _, needed in parts)


def test_siblings_in_two_shards_make_two_reads_of_one_batch() -> None:
    weights, scales = tile("a", [2**19] * 8), tile("b", [2**16] * 8)
    jobs = [Job(tensors=pair, do=nothing) for pair in zip(weights, scales, strict=True)]
    [batch] = in_batches(jobs)
    reads = list(reading.reads(tensor for job in batch for tensor in job.tensors))
    assert [(each.tensors[0].file, len(each.tensors)) for each in reads] == [("a", 8), ("b", 8)]


def test_eight_reads_are_in_flight_at_once() -> None:
    tensors = tile("a", [BUFFER_BYTES - 2 * disk.BLOCK] * (2 * READERS))
    meeting = threading.Barrier(READERS, timeout=20)

    def meet(jobs: Sequence[Job], memory: torch.Tensor) -> BytesOf:
        meeting.wait()
        return lambda tensor: memory

    assert READERS == 8
    read_all(meet, [single(tensor) for tensor in tensors], allocate, "weights", ignore)


def test_progress_goes_up_to_the_whole_in_the_callers_thread(tmp_path: Path) -> None:
    tensors = tile("a", [BUFFER_BYTES // 2] * 5)
    (tmp_path / "a").write_bytes(bytes(5 * BUFFER_BYTES // 2))
    calls: list[tuple[str, int, int, threading.Thread]] = []
    jobs = [single(tensor) for tensor in tensors]
    read(tmp_path, jobs, lambda *call: calls.append((*call, threading.current_thread())))
    done = [call[1] for call in calls]
    total = sum(tensor.bytes for tensor in tensors)
    assert done == sorted(done) and done[0] == 0 and done[-1] == total
    assert {(call[0], *call[2:]) for call in calls} == {
        ("weights", total, threading.current_thread())
    }


def failing(reads: list[int], faults: dict[int, float]) -> reading.ReadBatch:
    """Batch numbers of `faults` fail, after so many seconds; the others take a little while."""

    def fail(jobs: Sequence[Job], memory: torch.Tensor) -> BytesOf:
        number = jobs[0].tensors[0].offset // BUFFER_BYTES
        reads.append(number)
        time.sleep(faults.get(number, 0.02))
        if number in faults:
            raise LoadError(file="a", tensor=str(number), expected="", found="", hint="")
        return lambda tensor: memory

    return fail


def large(count: int) -> list[Job]:
    """Jobs that fill a buffer each."""
    room = BUFFER_BYTES - 2 * disk.BLOCK
    return [single(header("a", at * BUFFER_BYTES, room)) for at in range(count)]


def test_a_fault_stops_what_has_not_begun() -> None:
    begun: list[int] = []
    with pytest.raises(LoadError):
        read_all(failing(begun, {0: 0.0}), large(200), allocate, "weights", ignore)
    assert len(begun) <= 3 * READERS


def test_of_several_faults_the_first_in_the_file_is_told() -> None:
    for _ in range(5):
        with pytest.raises(LoadError) as caught:
            read_all(failing([], {3: 0.1, 5: 0.0}), large(9), allocate, "weights", ignore)
        assert caught.value.tensor == "3"


def test_an_interrupt_stops_what_has_not_begun() -> None:
    begun: list[int] = []

    def interrupt(phase: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_all(failing(begun, {}), large(200), allocate, "weights", interrupt)
    assert len(begun) <= 3 * READERS


def test_a_disk_that_fails_is_told_with_the_tensor_at_which_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = tile("a", [3 * disk.BLOCK] * 4)
    (tmp_path / "a").write_bytes(bytes(12 * disk.BLOCK))
    preadv = os.preadv

    def fail(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError
        if offset >= 6 * disk.BLOCK:
            raise OSError(errno.EIO, "Input/output error")
        return preadv(descriptor, [buffers[0][: disk.BLOCK]], offset)

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(LoadError) as caught:
        read(tmp_path, [single(tensor) for tensor in tensors])
    assert str(caught.value) == (
        f"`{tensors[2].name}` in `a`: expected readable data, found Input/output error"
    )


def test_a_file_that_was_cut_since_is_told_with_its_tensor(tmp_path: Path) -> None:
    tensors = tile("a", [5000] * 4)
    (tmp_path / "a").write_bytes(bytes(12_000))
    with pytest.raises(LoadError, match=r"`a:10000` in `a`: .*, found the end of the file"):
        read(tmp_path, [single(tensor) for tensor in tensors])


def test_a_file_that_is_gone_since_is_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="`a`: expected a readable file, found No such file"):
        read(tmp_path, [single(header("a", 0, 5))])


def test_numbers_at_an_odd_place_are_read_as_well(tmp_path: Path) -> None:
    numbers = torch.tensor([[1.5, -2.25], [3.0, 4.0]])
    (tmp_path / "a").write_bytes(b"odd" + numbers.numpy().tobytes())
    tensor = TensorHeader(name="n", file="a", dtype="F32", shape=(2, 2), bytes=16, offset=3)
    found: list[torch.Tensor] = []
    read(
        tmp_path, [single(tensor, lambda bytes_of: found.append(Reader(bytes_of).read(tensor) + 0))]
    )
    assert torch.equal(found[0], numbers)


def test_torchs_own_threads_are_as_many_afterwards() -> None:
    threads = torch.get_num_threads()
    inside: list[int] = []

    def note(jobs: Sequence[Job], memory: torch.Tensor) -> BytesOf:
        inside.append(torch.get_num_threads())
        return lambda tensor: memory

    read_all(note, large(3), allocate, "weights", ignore)
    assert inside == [1, 1, 1]
    assert torch.get_num_threads() == threads


def test_rows_of_a_tensor_are_a_tensor_inside_it() -> None:
    whole = TensorHeader(name="w", file="a", dtype="BF16", shape=(10, 3, 2), bytes=120, offset=1000)
    rows = whole.rows(4, 2)
    assert (rows.shape, rows.bytes, rows.offset) == ((2, 3, 2), 24, 1048)
