"""A part of a file into memory: around the page cache where that can be, from it where it has the file."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from firmtoken.schema.regular_file import open_regular

BLOCK = 4096
"""Offsets, sizes and addresses of direct reads are multiples of it: a page. A disk with larger blocks refuses them."""
SAMPLES = 64
"""If so many are in the page cache, 95 % of a file are, but for one time in 27: 0.95 ** 64."""


class Cut(Exception):
    """A read that ended early."""

    def __init__(self, reason: str, *, after: int) -> None:
        super().__init__(reason)
        self.after = after
        """Bytes that were read before."""


def is_cached(path: Path) -> bool:
    """Whether the page cache has the file, by blocks all over it; drops what it has of a file that it has in part."""
    try:
        with opened(path, 0) as descriptor:
            found = has_samples(descriptor, os.fstat(descriptor).st_size)
            if not found:
                # Also what asking has begun to read: asked again and again, it would add up to a file that is there.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            return found
    except OSError:  # whoever reads it will say so
        return False


def has_samples(descriptor: int, size: int) -> bool:
    """Whether reads of single blocks need not wait."""
    # The kernel begins to read what is not there: random access keeps that to the one block.
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    byte = bytearray(1)
    try:
        return all(
            os.preadv(descriptor, [byte], (size - 1) * sample // SAMPLES, os.RWF_NOWAIT)
            for sample in range(SAMPLES + 1)
        )
    except OSError:  # it would wait; or the file system does not know the flag
        return False


def read_part(path: Path, offset: int, needed: int, memory: memoryview, *, cached: bool) -> None:
    """Reads `needed` bytes from `offset` on; raises `Cut`, or `OSError` where the file cannot be opened.

    `offset`, and the address and size of `memory`, are multiples of `BLOCK`; what lies behind `needed` is undefined.

    Weights are read once: kept in the page cache they would be in memory twice, and push out what others need. A file
    that is there already (a fresh download; `cached`) costs nothing more there, and comes several times faster.
    """
    if cached:
        with opened(path, 0) as descriptor:
            fill(descriptor, offset, needed, memory)
        return
    try:
        with opened(path, os.O_DIRECT) as descriptor:
            fill(descriptor, offset, needed, memory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system or a disk without such reads answers
            raise
        with opened(path, 0) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing behind this part
            fill(descriptor, offset, needed, memory)
            os.posix_fadvise(descriptor, offset, len(memory), os.POSIX_FADV_DONTNEED)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor for reading."""
    descriptor = open_regular(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def fill(descriptor: int, offset: int, needed: int, memory: memoryview) -> None:
    """Reads until all that is needed is there."""
    done = 0
    while done < needed:
        start = done - done % BLOCK  # a direct read cannot go on in the middle of a block
        try:
            end = start + os.preadv(descriptor, [memory[start:]], offset + start)
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise
            raise Cut(error.strerror or str(error), after=done) from error
        if end <= done:
            raise Cut("the end of the file", after=done)
        done = end
