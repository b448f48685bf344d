"""`Graphs`: programs of a CUDA device that are replayed instead of launched, each for one cut.

A graph says what it is at by one word a layer, in the same place where launches are noted (D18); the writes run beside
the layers, not between them. What a program waits for at its entry lies outside of its graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from firmtoken.compiler.program import BoundYield
from firmtoken.runtime.engine.batches import Batches, Cut
from firmtoken.runtime.engine.cuda_streams import CudaStreams
from firmtoken.runtime.engine.launches import Bound, Launch
from firmtoken.runtime.engine.position import RUNNING, STEPS_AT, Position
from firmtoken.runtime.kernels import load_entry
from firmtoken.runtime.memory.arena import pin

WRITE_WORD = "firmtoken.runtime.kernels.position_word:write_word"
"""Needs Triton, which only a GPU's engine has."""


class Graphs:
    """All that were captured; after the engine is ready none is added. `timed`: decode steps say what they took."""

    def __init__(
        self, streams: CudaStreams, position: Position, main_word: int, *, timed: bool
    ) -> None:
        self._streams = streams
        self._timed = timed
        self._main_word = main_word
        self._write_word = load_entry(WRITE_WORD)
        self._words = torch.frombuffer(position.words, dtype=torch.int64)
        pin(self._words.view(torch.uint8), STEPS_AT)
        self._captured: dict[tuple[str, Cut], torch.cuda.CUDAGraph] = {}
        self._ends: dict[Cut, tuple[torch.cuda.Event, torch.cuda.Event]] = {}
        """Of decode steps, if they are timed: before the first launch and after the last."""
        self._replayed: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def capture(self, name: str, cut: Cut, bound: Bound, batches: Batches) -> None:
        """The program must have run before, so that every kernel is loaded; it will read `batches` at each replay."""
        self._streams.drain()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.inference_mode(),
            self._streams.apart(),
            torch.cuda.graph(graph, stream=self._streams.main),
        ):
            timed = self._timing(cut) if self._timed and name == "decode" else nullcontext()
            with timed:
                self._issue_all(bound, batches)
        self._captured[name, cut] = graph

    def replay(self, name: str, cut: Cut, bound: Bound) -> bool:
        """Whether there is a graph; if so all of the program is under way."""
        graph = self._captured.get((name, cut))
        if graph is None:
            return False
        first = next(item for item in bound if isinstance(item, Launch) and item.on_main)
        if entry_waits := first.waits[: len(first.waits) - len(first.step.waits)]:
            self._streams.wait(entry_waits)
        graph.replay()
        self._replayed = self._ends.get(cut) if name == "decode" else None
        return True

    def settle(self) -> float | None:
        """Seconds that the device took for the last replay, which has come to its end; None if it is not timed."""
        ends, self._replayed = self._replayed, None
        return None if ends is None else ends[0].elapsed_time(ends[1]) / 1e3

    @contextmanager
    def _timing(self, cut: Cut) -> Iterator[None]:
        # Nodes of the graph: events around a replay would count what the host needs to launch it.
        begin, end = (
            torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        yield
        end.record()
        self._ends[cut] = (begin, end)

    def _issue_all(self, bound: Bound, batches: Batches) -> None:
        layer = None
        for item in bound:
            if isinstance(item, BoundYield):
                continue
            if (now := item.step.at.get("l")) != layer:
                layer = now
                self._streams.beside(self._write(item.at | RUNNING))
            self._issue(item, batches)
        self._streams.join()

    def _issue(self, item: Launch, batches: Batches) -> None:
        batch, step = batches[item.key], item.step
        if not item.on_main:
            self._streams.issue(
                step.step.stream, step.waits, lambda: item.call(batch), step.records, at=item.at
            )
            return
        self._streams.wait(step.waits)
        item.call(batch)
        self._streams.record(step.records)

    def _write(self, value: int) -> partial[None]:
        return partial(self._write_word, self._words, self._main_word, value)
