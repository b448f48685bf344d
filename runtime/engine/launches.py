"""From a bound step to a launch: which kernel, which operands, which batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any  # operands and results differ by op

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.program import BoundStep, BoundYield, Flat, Value
from firmtoken.compiler.sessions import PHASE
from firmtoken.compiler.workspaces import WORKSPACE_SPACES, workspace_line
from firmtoken.runtime.engine.batches import SPAN, AnyBatch, Cut, Key
from firmtoken.runtime.engine.faults import Faults
from firmtoken.runtime.engine.position import IDLE, pack
from firmtoken.runtime.engine.streams import MAIN
from firmtoken.runtime.engine.views import Views, Window
from firmtoken.runtime.kernels import load_entry

BRIEF = 2
"""Where `main` waits for a side launch no later than at its launch of this number, it runs it itself if it is next.

A thread would hide it behind one short launch, and costs two wake-ups and a fight for the interpreter's lock in every
operation of both: 1.1 ms of a decode step, more than its eight fetches take (runtime/kernels/NOTES.md).
"""
SPANS = ("prefill", "extend")
"""Programs whose layers have a deadline each; a decode step has one for all."""
COUNTED = ("fetch", "admit")
"""Ops whose return value is counted: bytes moved, experts found in their slots."""


class NoKernel(LookupError):
    """A step that no kernels row covers, or a row whose kernel is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A step with its kernel and operands bound; what is left is the batch."""

    step: BoundStep
    choice: KernelChoice
    kernel: partial[Any]
    """With its constants and operands as keywords."""
    call: Callable[[AnyBatch], Any]
    """The kernel, with what a test lets go wrong."""
    at: int
    """Which launch it is: a word of `position`, without its state."""
    key: Key
    """Which of the run's batches it takes."""
    on_main: bool
    plain: bool
    """On `main`, without events, holds, counters or a new deadline: nothing but the call."""
    counted: bool
    renews: bool
    """The first of a layer of a span: another unit begins, with a deadline of its own."""
    waits: tuple[Value, ...]
    brief: bool
    """On a side stream, and `main` waits for it almost at once."""


class Bound:
    """What a run launches, in order; each is bound when it is first asked for.

    So a GPU begins a prompt of a new length at once: what comes later is bound while it works. For three tiles of 40
    layers that took the host of an H200 18 ms.
    """

    def __init__(self, items: Iterator[Launch | BoundYield], count: int) -> None:
        self._rest = items
        self._count = count
        self._bound: list[Launch | BoundYield] = []

    def __iter__(self) -> Iterator[Launch | BoundYield]:
        at = 0
        while at < len(self._bound) or self._bind_next():
            yield self._bound[at]
            at += 1

    def first_on_main(self) -> Launch:
        """Every program has one."""
        return next(item for item in self if isinstance(item, Launch) and item.on_main)

    def _bind_next(self) -> bool:
        if len(self._bound) == self._count:
            return False
        self._bound.append(next(self._rest))
        return True


class Kernels:
    """The kernels rows of a plan, loaded."""

    def __init__(self, rows: Sequence[KernelChoice]) -> None:
        self._rows: dict[tuple[str, str, str], list[KernelChoice]] = {}
        for row in rows:
            if row.status != "ready":
                raise NoKernel(f"kernel `{row.kernel}` of `{row.op}` is only planned")
            self._rows.setdefault((row.op, row.kernel, row.phase), []).append(row)
        self._loaded = {row.entry: load_entry(row.entry) for row in rows}

    def choose(self, step: BoundStep, program: str, rows: int) -> KernelChoice:
        """The row of the kernel that the step names."""
        for row in self._rows.get((step.step.op, step.step.kernel, PHASE[program]), ()):
            if row.sizes[0] <= rows <= row.sizes[1]:
                return row
        raise NoKernel(
            f"no kernels row for `{step.step.op}` by `{step.step.kernel}` with {rows} rows in {program}"
        )

    def entry(self, row: KernelChoice) -> Callable[..., Any]:
        """What the row names."""
        return self._loaded[row.entry]


def bind_program(
    flat: Flat,
    program: str,
    cut: Cut,
    views: Views,
    kernels: Kernels,
    faults: Faults,
    *,
    experts_per_token: int,
    entry_waits: tuple[Value, ...],
) -> Iterator[Launch | BoundYield]:
    """Every launch of a program for launches of these rows; `entry_waits` are the first main launch's."""
    before = None
    for index, item in enumerate(flat):
        if isinstance(item, BoundYield):
            yield item
            continue
        layer = (item.at.get("c"), item.at.get("l"))
        renews = program in SPANS and layer != before
        before = layer
        window, key, rows = _place(item, cut, experts_per_token)
        waits = item.waits
        brief = item.step.stream != MAIN and _is_brief(flat, index, entry_waits)
        if item.step.stream == MAIN:
            waits, entry_waits = (*entry_waits, *waits), ()
        operands = {name: views.cut(value, window) for name, value in item.operands.items()}
        choice = kernels.choose(item, program, rows)
        if workspace_line(choice.workspace) in WORKSPACE_SPACES:
            operands["workspace"] = views.workspace(choice.workspace)
        kernel = partial(kernels.entry(choice), **choice.constants, **operands, **item.indices)
        call = faults.wrap(kernel, item, program, operands)
        at = pack(program, index, IDLE)
        yield _launch(item, choice, kernel, call, key, waits, at=at, renews=renews, brief=brief)


def _is_brief(flat: Flat, at: int, entry_waits: Sequence[Value]) -> bool:
    """`entry_waits`: those that the next launch on `main` still has to wait for."""
    item = flat[at]
    assert isinstance(item, BoundStep)
    on_main = (
        other.waits
        for other in islice(flat, at + 1, None)
        if isinstance(other, BoundStep) and other.step.stream == MAIN
    )
    waits = {wait for waits in islice(on_main, BRIEF) for wait in waits}
    return not waits.union(entry_waits).isdisjoint(item.records)


def _launch(
    item: BoundStep,
    choice: KernelChoice,
    kernel: partial[Any],
    call: Callable[..., Any],
    key: Key,
    waits: tuple[Value, ...],
    *,
    at: int,
    renews: bool,
    brief: bool,
) -> Launch:
    on_main = item.step.stream == MAIN
    counted = item.step.op in COUNTED
    busy = waits or item.records or item.holds or item.drops or counted or renews
    return Launch(
        step=item,
        choice=choice,
        kernel=kernel,
        call=call,
        at=at,
        key=key,
        on_main=on_main,
        plain=on_main and not busy,
        counted=counted,
        renews=renews,
        waits=waits,
        brief=brief,
    )


def _place(item: BoundStep, cut: Cut, experts_per_token: int) -> tuple[Window, Key, int]:
    """Rows of the operands, the batch's key and the number of rows, by the step's unit and place."""
    c = item.at.get("c", 0)
    tiles = cut.chunks[c] if cut.chunks else (0,)
    chunk_rows = sum(tiles)
    num_pairs = chunk_rows * experts_per_token
    first, tile_rows = 0, chunk_rows
    key: Key
    match item.step.rows:
        case "tile":
            t = item.at.get("t", 0)
            first, tile_rows = sum(tiles[:t]), tiles[t]
            key, rows = ("tile", c, t), tile_rows
        case "tokens":
            key, rows = ("tokens", c), chunk_rows
        case "pairs":
            key, rows = ("tokens", c), num_pairs
        case "sequences":
            key, rows = SPAN, cut.num_seqs
        case "1":
            key, rows = SPAN, 1
        case unit:
            raise AssertionError(f"`{item.step.op}` is counted in `{unit}`")
    window = Window(
        tokens=(first, first + tile_rows),
        tile=(0, tile_rows),
        pairs=(0, num_pairs),
        sequences=(0, cut.num_seqs),
    )
    return window, key, rows
