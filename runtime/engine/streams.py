"""Streams of a CPU device: `main` is the caller's thread, every other stream is a thread with a FIFO.

While that is empty, a brief launch runs on the caller's thread: it is next in order all the same.
Events have CUDA's semantics: a wait takes the last record before it in issue order; what was never recorded orders
nothing. What `main` records has happened when it is issued, so it needs no event.
"""

import queue
import threading
from _thread import LockType, allocate_lock
from collections.abc import Callable, Sequence

import torch

from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.position import (
    FIRST_STREAM,
    RUNNING,
    WAITING,
    Position,
)

MAIN = "main"


class StreamFailed(Exception):
    """A launch on a side stream raised; its exception is the cause."""

    def __init__(self, stream: str, at: int) -> None:
        super().__init__(f"a launch on stream `{stream}` failed")
        self.at = at
        """The launch: a word of `position`, without its state."""


class Event:
    """Happens once. A lock costs a tenth of a condition variable."""

    def __init__(self) -> None:
        self._pending: LockType = allocate_lock()
        self._pending.acquire()

    @property
    def happened(self) -> bool:
        """Nobody would wait for it."""
        return not self._pending.locked()

    def happen(self) -> None:
        """Lets everyone who waits go on."""
        self._pending.release()

    def wait(self) -> None:
        """Returns once it has happened."""
        with self._pending:
            pass


Call = Callable[[], None]


class SideStream:
    """A thread that runs what it is given, in order; `number` is its place among the plan's streams."""

    def __init__(self, name: str, number: int, position: Position) -> None:
        self.failure: Exception | None = None
        self.failed_at = 0
        self._queue: queue.SimpleQueue[tuple[tuple[Event, ...], Call, Event | None, int] | None]
        self._queue = queue.SimpleQueue()
        self._words = position.words
        self._word = FIRST_STREAM + 2 * number
        self._num_issued = 0  # written by `main`
        self._num_done = 0  # written by the thread
        run = torch.inference_mode()(self._run_all)  # the mode belongs to a thread
        self._thread = threading.Thread(target=run, name=f"stream {name}", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """All that was enqueued has run: what is launched now is next in order."""
        return self._num_done == self._num_issued

    def issue(
        self, waits: tuple[Event, ...], launch: Call, happened: Event | None, at: int
    ) -> None:
        """Enqueues a launch."""
        self._num_issued += 1
        self._queue.put((waits, launch, happened, at))

    def run(self, launch: Call, at: int) -> None:
        """Runs a launch on the thread that calls."""
        try:
            if self.failure is None:
                launch()
        except Exception as error:  # whatever a kernel raises belongs to whoever waits for it
            self.failure, self.failed_at = error, at

    def close(self) -> None:
        """Ends the thread after what it was given."""
        self._queue.put(None)
        self._thread.join()

    def _run_all(self) -> None:
        torch.set_num_threads(1)  # of this thread: copies must not take cores from `main`
        words, word = self._words, self._word
        words[word + 1] = threading.get_native_id()
        while (item := self._queue.get()) is not None:
            waits, launch, happened, at = item
            if waits:
                words[word] = at | WAITING
                for event in waits:
                    event.wait()
            words[word] = at | RUNNING
            self.run(launch, at)
            words[word] = at
            self._num_done += 1
            if happened is not None:
                happened.happen()


class Streams:
    """All streams of a plan and the events between them."""

    def __init__(self, names: Sequence[str], position: Position) -> None:
        torch.get_num_threads()  # fixes this thread's number before side streams set theirs
        self._side = {
            name: SideStream(name, number, position)
            for number, name in enumerate(names)
            if name != MAIN
        }
        self._events: dict[Value, Event] = {}

    def wait(self, events: Sequence[Value]) -> None:
        """`main` goes on when these have happened."""
        for name in events:
            event = self._events.get(name)
            if event is not None:
                event.wait()
        self._check()

    def record(self, events: Sequence[Value]) -> None:
        """What ran on `main`'s thread has happened: nobody needs to wait."""
        for name in events:
            self._events.pop(name, None)

    def issue(
        self,
        stream: str,
        waits: Sequence[Value],
        launch: Call,
        records: Sequence[Value],
        *,
        at: int,
        brief: bool = False,
    ) -> None:
        """Launches on a side stream. `brief`: `main` waits for it at once, so it may run here if it is next anyway.

        `at` says which launch it is: a word of `position`, without its state.
        """
        pending = tuple(self._events[name] for name in waits if name in self._events)
        if brief and self._side[stream].idle and all(event.happened for event in pending):
            self._side[stream].run(launch, at)
            self.record(records)
            return
        happened = Event() if records else None
        for name in records:
            assert happened is not None
            self._events[name] = happened
        self._side[stream].issue(pending, launch, happened, at)

    def drain(self) -> None:
        """Returns when every side stream is idle."""
        self._wait_idle()
        self._check()

    def recover(self) -> None:
        """Returns when every side stream is idle; what failed is forgotten."""
        self._wait_idle()
        for stream in self._side.values():
            stream.failure = None

    def close(self) -> None:
        """Ends the threads."""
        for stream in self._side.values():
            stream.close()

    def _wait_idle(self) -> None:
        for stream in self._side.values():
            idle = Event()
            stream.issue((), _nothing, idle, 0)
            idle.wait()
        self._events.clear()

    def _check(self) -> None:
        for name, stream in self._side.items():
            if stream.failure is not None:
                raise StreamFailed(name, stream.failed_at) from stream.failure


def _nothing() -> None:
    pass
