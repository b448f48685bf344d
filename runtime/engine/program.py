"""The interpreter: walks the unrolled programs of a plan, launches what they say where they say it, and nothing else.

What it launches can be recorded and equals the plan (D5). It decides nothing: sizes come from the batch, everything
else from the plan.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundYield, Flat, Program, Value
from firmtoken.compiler.unroll import bind_all, describe_step, unroll
from firmtoken.runtime.engine.batches import AnyBatch, BatchBuilder, Batches, Cut
from firmtoken.runtime.engine.cuda_streams import CudaStreams
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.drawn import DrawnTokens, Read
from firmtoken.runtime.engine.faults import Faults
from firmtoken.runtime.engine.graphs import Graphs
from firmtoken.runtime.engine.launches import SPANS, Bound, Kernels, Launch, bind_program
from firmtoken.runtime.engine.position import FIRST_STREAM, RUNNING, WAITING, Position
from firmtoken.runtime.engine.streams import MAIN, StreamFailed, Streams
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.memory.arena import Arena

MAX_KEPT = 16
"""Spans of equal cuts share a bound program, those of equal tiles an unrolled one; the least recent are forgotten."""

OnYield = Callable[[BoundYield], None]
K = TypeVar("K")
V = TypeVar("V")


class Abandoned(Exception):
    """Raised by `on_yield`: nobody needs the rest of this run."""


class LaunchFailed(Exception):
    """A kernel raised; its exception is the cause. What its run was to write cannot be trusted."""


class FailedBefore(LaunchFailed):
    """A launch of an earlier run, on a side stream, noticed only now: nothing of this run was launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a recorder keeps of a launch."""

    program: str
    op: str
    kernel: str
    stream: str
    waits: tuple[Value, ...]
    entry_waits: tuple[Value, ...]
    """The program's own, before its first launch on `main`."""


@dataclass(slots=True, kw_only=True)
class Counters:
    """Exact once the interpreter is drained. One stream runs all launches of a counted op, so none is lost."""

    link_bytes: dict[str, int] = field(
        default_factory=lambda: {"decode": 0, "prefill": 0, "extend": 0}
    )
    """Bytes copied from the host bank, by program."""
    expert_hits: int = 0
    """Experts that decode found in their slots; counted where `admit` says it."""
    timed_steps: int = 0
    timed_s: float = 0.0
    """What the device took for those decode steps, from the first launch of their graph to its last."""

    def count(self, program: str, op: str, found: int) -> None:
        """Adds what a launch of a counted op returned."""
        if op == "fetch":
            self.link_bytes[program] += found
        else:
            self.expert_hits += found


class Recent(Generic[K, V]):
    """The last few things that were made, by what they were made of."""

    def __init__(self) -> None:
        self._kept: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The kept one, else a new one."""
        if key not in self._kept:
            self._kept[key] = make()
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def open_streams(
    plan: Plan, position: Position, main_word: int, *, timed: bool
) -> tuple[Streams | CudaStreams, Graphs | None]:
    """Those of the plan's device, and a GPU's graphs."""
    names = plan.streams.names
    if plan.device.kind == "cpu":
        return Streams(names, position), None
    streams = CudaStreams(names)
    return streams, Graphs(streams, position, main_word, timed=timed)


class Interpreter:
    """Programs of one plan over one arena. `main` is the caller's thread.

    `timed`: graphs of decode steps measure themselves, for `ft bench`.
    """

    def __init__(
        self, plan: Plan, arena: Arena, position: Position | None = None, *, timed: bool = False
    ) -> None:
        self.views = Views(plan, arena)
        self.position = Position() if position is None else position
        self.held: set[Value] = set()
        """Values that no decode step may change now."""
        self.counters = Counters()
        self.record: list[Launched] | None = None
        """Set to a list to keep every launch."""
        self.faults = Faults(plan.faults, self.position)
        self._plan = plan
        self._kernels = Kernels(plan.kernels)
        self._main_word = FIRST_STREAM + 2 * plan.streams.names.index(MAIN)
        self._streams, self._graphs = open_streams(
            plan, self.position, self._main_word, timed=timed
        )
        self._drawn = DrawnTokens(plan.schedule.max_num_seqs) if self._graphs is not None else None
        self._under_way = 0
        """Runs whose tokens are being brought: a run that nobody brings anything of is never settled."""
        self._experts_per_token = int(plan.model.geometry["num_experts_per_token"])
        self._latest: dict[str, Bound] = {}  # of each program, what it ran last
        self._flats: Recent[tuple[str, tuple[int, ...]], Flat] = Recent()
        self._sized: dict[tuple[str, Cut], Bound] = {}
        self._bound: Recent[tuple[str, Cut], Bound] = Recent()

    def run(self, name: str, cut: Cut, batches: Batches, on_yield: OnYield | None = None) -> None:
        """One run of a program; a yield hands over to `on_yield`, which may run another and change `batches`.

        Raises `LaunchFailed`; `recover` must follow.
        """
        position = self.position
        position.due(self.deadline(name))
        rows = sum(map(sum, cut.chunks))
        number = position.begin_run(name, cut.tiles, rows, cut.num_seqs)
        with torch.inference_mode():
            bound = self._latest[name] = self.bind(name, cut)
            try:
                if not self._replayed(name, cut, bound):
                    self._walk(name, bound, batches, on_yield)
            except Abandoned:
                self.drain()
                self.held.clear()
        position.end_run(number)

    def bring(self, program: str, count: int) -> Read:
        """What the run that has just been launched draws; `settle` must follow the reading."""
        self._under_way += 1
        tokens = self.views.tensor(Value(f"{program}.tokens"))[:count]
        if self._drawn is not None:
            return self._drawn.bring(tokens)
        found: list[int] = tokens.tolist()
        return lambda: found

    def batch_builder(self) -> BatchBuilder | DeviceBatches:
        """What makes the batches that this device's kernels read."""
        if self._plan.device.kind == "cuda":
            return DeviceBatches(self._plan, self.views)
        return BatchBuilder(
            self._plan.kv_cache.page_size, hybrid="linear" in self._plan.model.layer_kinds
        )

    def capture(self, name: str, cut: Cut, batches: Batches) -> None:
        """From now on runs of this program and cut are replays of a graph; it must have run before."""
        assert self._graphs is not None, "only a GPU captures"
        bound = self._sized[name, cut] = self.bind(name, cut)
        self._graphs.capture(name, cut, bound, batches)

    def settle(self, program: str) -> None:
        """The first run that was brought and not settled, one of `program`, has ended: its result has been read."""
        self._under_way -= 1
        if not self._under_way:  # else the device is at the next one, and says so itself
            self.position.words[self._main_word] = 0
        took = self._graphs.settle() if self._graphs is not None and program == "decode" else None
        if took is not None:
            self.counters.timed_steps += 1
            self.counters.timed_s += took

    def deadline(self, program: str) -> float:
        """Seconds that a unit of this program may take: a layer of a span, the whole of any other."""
        deadlines = self._plan.schedule.deadlines
        return deadlines.prefill_layer_s if program in SPANS else deadlines.decode_s

    def recover(self) -> None:
        """After `LaunchFailed`: nothing is in flight any more, and nothing is held."""
        self._streams.recover()
        if self._graphs is not None:
            self._graphs.recover()
        self._under_way = 0
        self.held.clear()
        self.position.words[self._main_word] = 0

    def bind(self, name: str, cut: Cut) -> Bound:
        """The program bound to launches of these sizes: kept for planned sizes and graphs, the last few otherwise."""
        if (name, cut) in self._sized:
            return self._sized[name, cut]
        if not self._program(name).sizes:
            return self._bound.get((name, cut), partial(self._bind, name, cut))
        self._sized[name, cut] = self._bind(name, cut)
        return self._sized[name, cut]

    def unrolled(self, name: str, cut: Cut) -> Flat:
        """The program for so many tiles, of whatever rows: what is bound to them, launch by launch."""
        return self._flats.get((name, cut.tiles), partial(self._unroll, name, cut.tiles))

    def drain(self) -> None:
        """Returns when nothing is in flight; counters are exact then. Raises `LaunchFailed` of a side stream."""
        try:
            self._streams.drain()
        except StreamFailed as failed:
            raise LaunchFailed(self._described(failed.at)) from failed.__cause__

    def close(self) -> None:
        """Ends the side streams."""
        self._streams.close()

    def _bind(self, name: str, cut: Cut) -> Bound:
        flat = self.unrolled(name, cut)
        items = bind_program(
            flat,
            name,
            cut,
            self.views,
            self._kernels,
            self.faults,
            experts_per_token=self._experts_per_token,
            entry_waits=bind_all(self._program(name).entry_waits, {}),
        )
        return Bound(items, len(flat))

    def _unroll(self, name: str, tiles: tuple[int, ...]) -> Flat:
        """What `verify` reads."""
        kinds = self._plan.model.layer_kinds
        return unroll(self._program(name), kinds, chunks=max(1, len(tiles)), tiles=tiles)

    def _replayed(self, name: str, cut: Cut, bound: Bound) -> bool:
        return (
            self._graphs is not None
            and self.record is None
            and self._graphs.replay(name, cut, bound)
        )

    def _walk(self, name: str, bound: Bound, batches: Batches, on_yield: OnYield | None) -> None:
        words, main = self.position.words, self._main_word
        for item in bound:
            if isinstance(item, BoundYield):
                if on_yield is not None:
                    words[main] = 0
                    on_yield(item)
                    self.position.due(self.deadline(name))
                continue
            words[main] = item.at | RUNNING
            try:
                if item.plain and self.record is None and not self.held:
                    item.call(batches[item.key])
                else:
                    self._launch(name, item, batches[item.key])
            except StreamFailed as failed:
                kind = FailedBefore if item is next(iter(bound)) else LaunchFailed
                raise kind(self._described(failed.at)) from failed.__cause__
            except Exception as error:  # a kernel may raise anything; the engine answers for it
                raise LaunchFailed(self._described(item.at)) from error
        if self._graphs is None:
            words[main] = 0  # on a GPU launches have only begun: `settle`

    def _launch(self, program: str, launch: Launch, batch: AnyBatch) -> None:
        bound = launch.step
        if launch.renews:
            self.position.due(self.deadline(program))
        if self.record is not None:
            self.record.append(_launched(program, launch))
        # A GPU's `admit` reads a word of its own instead (`DeviceRows.held`); plans with one do not run there yet.
        if isinstance(batch, Batch) and not self.held.isdisjoint(bound.writes):
            batch = replace(batch, held=True)
        if launch.on_main:
            if launch.waits:
                self.position.words[self._main_word] = launch.at | WAITING
                self._streams.wait(launch.waits)
                self.position.words[self._main_word] = launch.at | RUNNING
            self._call(program, launch, batch)
            if bound.records:
                self._streams.record(bound.records)
        else:
            call = partial(self._call, program, launch, batch)
            self._streams.issue(
                bound.step.stream,
                launch.waits,
                call,
                bound.records,
                at=launch.at,
                brief=launch.brief,
            )
        if bound.holds or bound.drops:
            self.held.update(bound.holds)
            self.held.difference_update(bound.drops)

    def _call(self, program: str, launch: Launch, batch: AnyBatch) -> None:
        found = launch.call(batch)
        if launch.counted:
            self.counters.count(program, launch.step.step.op, found)

    def _described(self, at: int) -> str:
        """Which launch it is, for people: of this run or, as a side stream may lag behind, of one before."""
        for name, bound in self._latest.items():
            for item in bound:
                if isinstance(item, Launch) and item.at == at:
                    return describe_step(item.step, name)
        raise AssertionError(f"nobody launched {at:#x}")

    def _program(self, name: str) -> Program:
        programs = self._plan.programs
        if name == "park":
            assert programs.park is not None
            return programs.park
        named = {
            "decode": programs.decode,
            "prefill": programs.prefill,
            "extend": programs.extend,
        }
        return named[name]


def _launched(program: str, launch: Launch) -> Launched:
    bound = launch.step
    return Launched(
        program=program,
        op=bound.step.op,
        kernel=bound.step.kernel,
        stream=bound.step.stream,
        waits=bound.waits,
        entry_waits=launch.waits[: len(launch.waits) - len(bound.waits)],
    )
