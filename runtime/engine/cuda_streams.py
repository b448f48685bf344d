"""Streams of a CUDA device, with the face of `streams.Streams`: `main` is the calling thread's current stream.

A launch is only enqueued; waits and records are the device's own. What fails shows when somebody waits for a result,
and nothing on that device can be trusted any more: the engine ends with it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.streams import MAIN


class CudaStreams:
    """All streams of a plan and the events between them; one thread uses them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.main = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no type for it
        torch.cuda.set_stream(self.main)
        self._side = {
            name: torch.cuda.Stream()  # type: ignore[no-untyped-call]
            for name in names
            if name != MAIN
        }
        self._beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._events: dict[Value, torch.cuda.Event] = {}

    def wait(self, events: Sequence[Value]) -> None:
        """What is launched on `main` from here on begins after these have happened."""
        self._wait(self.main, events)

    def record(self, events: Sequence[Value]) -> None:
        """These happen when what was launched on `main` is done."""
        self._record(self.main, events)

    def issue(
        self,
        stream: str,
        waits: Sequence[Value],
        launch: Callable[[], None],
        records: Sequence[Value],
        *,
        at: int,
        brief: bool = False,
    ) -> None:
        """Launches on a side stream; `at` and `brief` matter where streams are threads."""
        side = self._side[stream]
        self._wait(side, waits)
        with torch.cuda.stream(side):
            launch()
        self._record(side, records)

    def beside(self, launch: Callable[[], None]) -> None:
        """Launches something that nobody waits for before `join`, once what was launched on `main` is done."""
        self._fork(self.main, self._beside)
        with torch.cuda.stream(self._beside):
            launch()

    def join(self) -> None:
        """`main` goes on after all that was launched beside it."""
        self._fork(self._beside, self.main)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Events in here have nothing to do with those outside: a program is being captured."""
        outside, self._events = self._events, {}
        try:
            yield
        finally:
            self._events = outside

    def drain(self) -> None:
        """Returns when nothing is in flight; raises what the device met."""
        torch.cuda.synchronize()

    def recover(self) -> None:
        """A CUDA device does not survive a fault; a launch that was refused has left nothing in flight."""
        torch.cuda.synchronize()

    def close(self) -> None:
        """Nothing to end."""

    def _fork(self, before: torch.cuda.Stream, after: torch.cuda.Stream) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(before)
        after.wait_event(event)

    def _wait(self, stream: torch.cuda.Stream, events: Sequence[Value]) -> None:
        for name in events:
            event = self._events.get(name)  # what was never recorded orders nothing
            if event is not None:
                stream.wait_event(event)

    def _record(self, stream: torch.cuda.Stream, events: Sequence[Value]) -> None:
        for name in events:
            event = self._events.get(name)
            if event is None:
                event = self._events[name] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
