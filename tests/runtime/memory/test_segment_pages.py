"""Pages of segments are there when they were taken, and a refusal is told to whoever needs them."""

import errno
import os

import pytest

from firmtoken.runtime.memory import segment_pages
from firmtoken.runtime.memory.segment_pages import STAT_BLOCK, begin_to_take, take_pages

SIZE = 4 * 2**20


def segment() -> int:
    descriptor = os.memfd_create("segment")
    os.ftruncate(descriptor, SIZE)
    return descriptor


def test_threads_take_every_page_of_each_segment() -> None:
    both = segment(), segment()
    assert [os.fstat(one).st_blocks for one in both] == [0, 0]
    for thread in begin_to_take(both):
        thread.join()
    assert [os.fstat(one).st_blocks * STAT_BLOCK for one in both] == [SIZE, SIZE]
    for one in both:
        os.close(one)


def test_pages_that_are_there_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = segment()
    take_pages(one)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    take_pages(one)
    os.close(one)


def test_a_refusal_is_told_when_the_pages_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = segment()
    monkeypatch.setattr(segment_pages.os, "posix_fallocate", refuse)
    for thread in begin_to_take([one]):
        thread.join()
    with pytest.raises(OSError, match="No space"):
        take_pages(one)
    os.close(one)


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
