"""Jobs on a few threads that keep nobody: Ctrl-C and the first fault end them, whatever the network does."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Thread

LAST_WORDS_S = 1.0
"""How long the others have to notice that one has failed; who waits for the network then is left behind."""


def run_in_threads(
    jobs: Sequence[Callable[[Event], None]],
    *,
    count: int,
    every_s: float,
    meanwhile: Callable[[], None],
) -> None:
    """All jobs, on `count` threads; raises the first fault. `meanwhile` is called by this thread, every so often.

    A job looks at its event, and ends soon after that is set.
    """
    waiting: SimpleQueue[Callable[[Event], None]] = SimpleQueue()
    for job in jobs:
        waiting.put(job)
    stop = Event()
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    # Daemons: a read that waits for the network would keep the process from ending.
    threads = [
        Thread(target=_work, args=(waiting, stop, ended), daemon=True)
        for _ in range(min(count, len(jobs)))
    ]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            with suppress(Empty):
                fault = ended.get(timeout=every_s)
                if fault is not None:
                    raise fault
                left -= 1
            meanwhile()
    except BaseException:
        stop.set()
        for thread in threads:
            thread.join(LAST_WORDS_S / len(threads))
        raise


def _work(
    waiting: "SimpleQueue[Callable[[Event], None]]",
    stop: Event,
    ended: "SimpleQueue[BaseException | None]",
) -> None:
    try:
        while not stop.is_set():
            try:
                job = waiting.get_nowait()
            except Empty:
                break
            job(stop)
    except BaseException as fault:
        ended.put(fault)
    else:
        ended.put(None)
