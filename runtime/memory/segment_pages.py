"""Pages of the shared memory that outlives the engine (D11), taken by threads while others work. No torch here."""

import os
from collections.abc import Iterable
from contextlib import suppress
from threading import Thread

STAT_BLOCK = 512
"""Bytes that `st_blocks` counts in (stat(2))."""


def begin_to_take(descriptors: Iterable[int]) -> tuple[Thread, ...]:
    """A thread for each segment, which ends when it has all its pages; 17 GiB take the system seconds.

    A refusal is not told here: `take_pages` gets the same one when the pages are needed.
    """
    threads = tuple(Thread(target=_try_to_take, args=(one,), daemon=True) for one in descriptors)
    for thread in threads:
        thread.start()
    return threads


def take_pages(descriptor: int) -> None:
    """All pages of a segment are there when this returns; raises `OSError` where the system has none.

    To ask again for pages that nobody has written yet has the system clear each of them, in this one thread.
    """
    state = os.fstat(descriptor)
    if state.st_blocks * STAT_BLOCK < state.st_size:
        os.posix_fallocate(descriptor, 0, state.st_size)


def _try_to_take(descriptor: int) -> None:
    with suppress(OSError):
        take_pages(descriptor)
