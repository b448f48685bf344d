"""The interpreter: walks the unrolled programs of a plan, launches what they say where they say it, and nothing else.

What it launches can be recorded and equals the plan (D5). It decides nothing: sizes come from the batch, everything
else from the plan.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundYield, Flat, Program, Value
from firmtoken.compiler.unroll import bind_all, unroll
from firmtoken.runtime.engine.batches import Batches, Cut
from firmtoken.runtime.engine.launches import Bound, Kernels, Launch, bind_program
from firmtoken.runtime.engine.streams import Streams
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.memory.arena import Arena

MAX_BOUND_SPANS = 16
"""Spans of equal cuts share a bound program; the least recently run one is forgotten."""

OnYield = Callable[[BoundYield], None]


class Abandoned(Exception):
    """Raised by `on_yield`: nobody needs the rest of this run."""


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

    def count(self, program: str, op: str, call: Callable[[], int | None]) -> None:
        """Runs a launch and adds what it returns."""
        found = call()
        if op == "fetch":
            self.link_bytes[program] += found or 0
        else:
            self.expert_hits += found or 0


class Interpreter:
    """Programs of one plan over one arena. `main` is the caller's thread."""

    def __init__(self, plan: Plan, arena: Arena) -> None:
        self.views = Views(plan, arena)
        self.held: set[Value] = set()
        """Values that no decode step may change now."""
        self.counters = Counters()
        self.record: list[Launched] | None = None
        """Set to a list to keep every launch."""
        self._plan = plan
        self._kernels = Kernels(plan.kernels)
        self._streams = Streams(plan.streams.names)
        self._experts_per_token = int(plan.model.geometry["num_experts_per_token"])
        self._flats: dict[tuple[str, tuple[int, ...]], Flat] = {}
        self._captured: dict[tuple[str, Cut], Bound] = {}
        self._bound: OrderedDict[tuple[str, Cut], Bound] = OrderedDict()

    def run(self, name: str, cut: Cut, batches: Batches, on_yield: OnYield | None = None) -> None:
        """One run of a program; a yield hands over to `on_yield`, which may run another and change `batches`."""
        with torch.inference_mode():
            try:
                self._walk(name, self.bind(name, cut), batches, on_yield)
            except Abandoned:
                self._streams.drain()
                self.held.clear()

    def bind(self, name: str, cut: Cut) -> Bound:
        """The program bound to launches of these sizes: kept for captured ones, the last few otherwise."""
        program = self._program(name)
        kept = self._captured if program.captured else self._bound
        bound = kept.get((name, cut))
        if bound is None:
            bound = kept[name, cut] = bind_program(
                self.flat(name, cut.tiles),
                name,
                cut,
                self.views,
                self._kernels,
                experts_per_token=self._experts_per_token,
                entry_waits=bind_all(program.entry_waits, {}),
            )
        if not program.captured:
            self._bound.move_to_end((name, cut))
            if len(self._bound) > MAX_BOUND_SPANS:
                self._bound.popitem(last=False)
        return bound

    def flat(self, name: str, tiles: tuple[int, ...]) -> Flat:
        """The unrolled program: what `verify` reads."""
        flat = self._flats.get((name, tiles))
        if flat is None:
            flat = self._flats[name, tiles] = unroll(
                self._program(name),
                self._plan.model.layer_kinds,
                chunks=max(1, len(tiles)),
                tiles=tiles,
            )
        return flat

    def drain(self) -> None:
        """Returns when nothing is in flight; counters are exact then."""
        self._streams.drain()

    def close(self) -> None:
        """Ends the side streams."""
        self._streams.close()

    def _walk(self, name: str, bound: Bound, batches: Batches, on_yield: OnYield | None) -> None:
        for item in bound:
            if isinstance(item, BoundYield):
                if on_yield is not None:
                    on_yield(item)
            elif item.plain and self.record is None and not self.held:
                item.call(batches[item.key])
            else:
                self._launch(name, item, batches[item.key])

    def _launch(self, program: str, launch: Launch, batch: Batch) -> None:
        bound = launch.step
        if self.record is not None:
            self.record.append(
                Launched(
                    program=program,
                    op=bound.step.op,
                    kernel=bound.step.kernel,
                    stream=bound.step.stream,
                    waits=bound.waits,
                    entry_waits=launch.waits[: len(launch.waits) - len(bound.waits)],
                )
            )
        if self.held and not self.held.isdisjoint(bound.writes):
            batch = replace(batch, held=True)
        call = partial(launch.call, batch)
        if launch.counted:
            call = partial(self.counters.count, program, bound.step.op, call)
        if launch.on_main:
            self._streams.wait(launch.waits)
            call()
            self._streams.record(bound.records)
        else:
            self._streams.issue(bound.step.stream, launch.waits, call, bound.records)
        self.held.update(bound.holds)
        self.held.difference_update(bound.drops)

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
