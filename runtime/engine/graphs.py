"""`Graphs`: programs of a CUDA device that are replayed instead of launched, each for one cut.

A graph says what it is at by one word a layer, in the same place where launches are noted (D18); the writes run beside
the layers, not between them. What a program waits for at its entry lies outside of its graph.
"""

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from firmtoken.compiler.program import BoundYield
from firmtoken.compiler.steps_ahead import UNDER_WAY
from firmtoken.runtime.engine.batches import Batches, Cut
from firmtoken.runtime.engine.cuda_streams import CudaStreams
from firmtoken.runtime.engine.launches import Bound, Launch
from firmtoken.runtime.engine.position import RUNNING, STEPS_AT, Position
from firmtoken.runtime.kernels import load_entry
from firmtoken.runtime.memory.arena import pin

WRITE_WORD = "firmtoken.runtime.kernels.position_word:write_word"
"""Needs Triton, which only a GPU's engine has."""


class Ends:
    """When a replay began and ended, by the device's clock: the first node of its graph and the last."""

    def __init__(self) -> None:
        # Nodes of the graph: events around a replay would count what the host needs to launch it.
        self._begin, self._end = (
            torch.cuda.Event(enable_timing=True, external=True)  # type: ignore[no-untyped-call]  # torch has no type for it
            for _ in range(2)
        )

    def __enter__(self) -> None:
        self._begin.record()

    def __exit__(self, *_: object) -> None:
        self._end.record()

    @property
    def seconds(self) -> float:
        """Between them, once the replay has come to its end."""
        took: float = self._begin.elapsed_time(self._end)
        return took / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A graph of a decode step that says what each replay takes."""

    graph: torch.cuda.CUDAGraph
    ends: Ends


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
        self._timed_steps: dict[Cut, deque[Timed]] = {}
        """Of decode steps, if they are timed; in turns: one is read while the next step is under way."""
        self._unread: deque[Ends] = deque()

    def capture(self, name: str, cut: Cut, bound: Bound, batches: Batches) -> None:
        """The program must have run before, so that every kernel is loaded; it will read `batches` at each replay."""
        self._streams.drain()
        if self._timed and name == "decode":
            ends = [Ends() for _ in range(UNDER_WAY)]
            graphs = [self._capture(bound, batches, one) for one in ends]
            self._timed_steps[cut] = deque(
                Timed(graph=graph, ends=one) for graph, one in zip(graphs, ends, strict=True)
            )
            self._captured[name, cut] = graphs[0]
        else:
            self._captured[name, cut] = self._capture(bound, batches, nullcontext())

    def replay(self, name: str, cut: Cut, bound: Bound) -> bool:
        """Whether there is a graph; if so all of the program is under way."""
        graph = self._captured.get((name, cut))
        if graph is None:
            return False
        first = bound.first_on_main()
        if entry_waits := first.waits[: len(first.waits) - len(first.step.waits)]:
            self._streams.wait(entry_waits)
        if name == "decode" and cut in self._timed_steps:
            turns = self._timed_steps[cut]
            turns.rotate()
            graph = turns[0].graph
            self._unread.append(turns[0].ends)
        graph.replay()
        return True

    def settle(self) -> float | None:
        """Seconds that the device took for the first decode step not asked for yet, which has ended; None: untimed."""
        return self._unread.popleft().seconds if self._unread else None

    def recover(self) -> None:
        """Nobody asks any more for the steps that were under way."""
        self._unread.clear()

    def _capture(
        self, bound: Bound, batches: Batches, timing: AbstractContextManager[None]
    ) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with (
            torch.inference_mode(),
            self._streams.apart(),
            torch.cuda.graph(graph, stream=self._streams.main),
            timing,
        ):
            self._issue_all(bound, batches)
        return graph

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
