"""A part of a file arrives in memory, whatever the file system can do, and leaves nothing in the page cache."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.runtime.weights.loading_rate import cached_bytes

from firmtoken.runtime.weights import disk
from firmtoken.runtime.weights.disk import BLOCK, Cut, is_cached, read_part

SIZE = 40 * BLOCK + 123


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of which nothing is in the page cache."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    forget(path)
    return path


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(path):
        pytest.skip("this file system is memory")


def part(path: Path, offset: int, needed: int) -> bytes:
    memory = mmap.mmap(-1, -(-needed // BLOCK) * BLOCK)
    read_part(path, offset, needed, memoryview(memory), cached=is_cached(path))
    return memory[:needed]


@pytest.mark.parametrize(
    ("offset", "needed"),
    [(0, BLOCK), (3 * BLOCK, 7), (5 * BLOCK, 9 * BLOCK), (0, SIZE), (40 * BLOCK, 123)],
)
def test_the_bytes_are_those_of_the_file(path: Path, offset: int, needed: int) -> None:
    content = path.read_bytes()
    forget(path)
    assert part(path, offset, needed) == content[offset : offset + needed]


TRIES = 5
"""`has_samples` begins to read what is not there, and a quick disk's answers deceive it: then all of the file is there.

A sample did so 21 times in 3,000 on a virtual disk (2026-12-01), up to 7 in a row; `mincore` would begin nothing.
"""


def test_at_most_a_block_of_it_stays_in_the_page_cache_however_often_it_is_read(
    path: Path,
) -> None:
    def most_that_stayed() -> int:
        forget(path)
        stayed = []
        for _ in range(5):
            part(path, 0, SIZE)
            stayed.append(cached_bytes(path))
        return max(stayed)

    most = [most_that_stayed() for _ in range(TRIES)]
    assert min(most) <= BLOCK  # what was asked for
    assert all(one <= BLOCK or one >= SIZE for one in most)


def test_a_file_of_which_only_a_part_is_in_the_page_cache_is_read_around_it(path: Path) -> None:
    def found() -> str:
        forget(path)
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(file.fileno(), 30 * BLOCK, 0)
        if is_cached(path):
            return "deceived" if cached_bytes(path) >= SIZE else "wrong"
        return "right"

    tries = {found() for _ in range(TRIES)}
    assert "right" in tries and "wrong" not in tries


def test_what_is_in_the_page_cache_is_read_there_and_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = path.read_bytes()
    flags = opens(monkeypatch)
    assert part(path, 0, SIZE) == content
    assert os.O_DIRECT not in flags
    assert cached_bytes(path) >= SIZE


def opens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The flags of each file that is opened from now on."""
    flags: list[int] = []
    opened = disk.opened

    def note(path: Path, wanted: int) -> object:
        flags.append(wanted)
        return opened(path, wanted)

    monkeypatch.setattr(disk, "opened", note)
    return flags


def test_a_file_system_without_direct_reads_is_read_through_the_cache_and_that_is_dropped(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = path.read_bytes()
    forget(path)
    opened = disk.opened

    @contextmanager
    def refuse(path: Path, flags: int) -> Iterator[int]:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        with opened(path, flags) as descriptor:
            yield descriptor

    monkeypatch.setattr(disk, "opened", refuse)
    assert part(path, 0, SIZE) == content
    assert cached_bytes(path) == 0


def test_a_file_system_that_knows_no_reads_without_waiting_is_read_directly(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def plain(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", plain)
    flags = opens(monkeypatch)
    part(path, 0, SIZE)
    assert flags == [0, os.O_DIRECT]


def test_a_read_that_the_system_cuts_short_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = path.read_bytes()
    forget(path)
    preadv = os.preadv

    def short(descriptor: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        return preadv(descriptor, [buffers[0][: 3 * BLOCK]], offset, flags)

    monkeypatch.setattr(os, "preadv", short)
    assert part(path, 0, SIZE) == content


def test_a_file_that_ends_too_early_says_how_far_it_came(path: Path) -> None:
    os.truncate(path, 2 * BLOCK + 5)
    with pytest.raises(Cut, match="the end of the file") as caught:
        part(path, BLOCK, 9 * BLOCK)
    assert caught.value.after == BLOCK + 5


def test_no_descriptor_is_left_open(path: Path) -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    part(path, 0, SIZE)
    with pytest.raises(Cut):
        part(path, 30 * BLOCK, 20 * BLOCK)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
