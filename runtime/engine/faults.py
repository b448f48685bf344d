"""Lets go wrong what a test's plan says. Launches are wrapped when they are bound: any other plan pays nothing."""

import itertools
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any  # results differ by op

import torch

from firmtoken.compiler.faults import Fault, faults_at
from firmtoken.compiler.ops import find_op
from firmtoken.compiler.program import BoundStep
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.views import Operand
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots

TOO_MANY_BYTES = 2**62
NAN_BYTE = 0xFF
"""In each byte of a number: NaN in fp32, in bf16 and in fp8 alike."""

Call = Callable[[Batch], Any]


class InjectedError(RuntimeError):
    """What a kernel raises that fails."""


class Faults:
    """The faults of a plan: each happens once, also if the engine is started again, which `position` remembers."""

    def __init__(self, faults: Sequence[Fault], position: Position) -> None:
        self.armed = True
        """Launches count; not during warm-up."""
        self._faults = tuple(faults)
        self._position = position
        self._num_launches = [0] * len(self._faults)

    def wrap(
        self, call: Call, step: BoundStep, program: str, operands: Mapping[str, Operand]
    ) -> Call:
        """The launch, with what may go wrong at it."""
        found = faults_at(self._faults, step, program)
        return partial(self._run, call, found, step.step.op, operands) if found else call

    def _run(
        self,
        call: Call,
        found: tuple[tuple[int, Fault], ...],
        op: str,
        operands: Mapping[str, Operand],
        batch: Batch,
    ) -> Any:
        due = [(number, fault) for number, fault in found if self._is_due(number, fault)]
        for number, fault in due:
            if fault.kind != "corrupt":
                self._position.spend(number)
                happen(fault)
        result = call(batch)
        for number, fault in due:
            if fault.kind == "corrupt":
                self._corrupt(number, op, operands, batch)
        return result

    def _is_due(self, number: int, fault: Fault) -> bool:
        """Counts the launch."""
        if not self.armed:
            return False
        self._num_launches[number] += 1
        return self._num_launches[number] == fault.step and number not in self._position.spent()

    def _corrupt(self, number: int, op: str, operands: Mapping[str, Operand], batch: Batch) -> None:
        if corrupt(op, operands, batch):
            self._position.spend(number)
        else:
            self._num_launches[number] -= 1  # nothing was missing: the next fetch is meant


def happen(fault: Fault) -> None:
    """What goes wrong before the launch, or instead of it."""
    match fault.kind:
        case "stall":
            while True:
                pass
        case "freeze":
            # One call into C that never comes back: no other thread gets the interpreter's lock.
            deque(itertools.repeat(None), maxlen=0)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "oom":
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)
        case "error":
            raise InjectedError(f"a fault was planned in `{fault.op}`")
        case "slow":
            time.sleep(fault.seconds)
        case "corrupt":
            raise AssertionError("this happens after the launch")


def corrupt(op: str, operands: Mapping[str, Operand], batch: Batch) -> bool:
    """Turns the floats that this launch wrote to NaN; what is others' stays. Whether there were any."""
    written = [name.rstrip("?") for name in find_op(op).writes]
    num_filled = 0
    for name in written:
        operand = operands.get(name)
        if isinstance(operand, ExpertSlots):
            slots = list(_fetched(operand, operands["miss"]))
            operand.arena.slots[slots] = NAN_BYTE
            num_filled += len(slots)
        elif isinstance(operand, torch.Tensor) and operand.is_floating_point():
            rows = _rows(name, batch)
            if rows is None:
                operand.fill_(torch.nan)
            elif name == "kv":  # [2, pages, page_size, Hkv, D] by token
                operand.flatten(1, 2)[:, rows] = torch.nan
            else:
                operand[rows] = torch.nan
            num_filled += 1
    assert num_filled or op == "fetch", f"`{op}` writes nothing that can be NaN"
    return num_filled > 0


def _fetched(place: ExpertSlots, miss: Operand) -> Iterator[int]:
    assert isinstance(miss, torch.Tensor)
    count = int(miss[0])
    for slot in miss[1 : 1 + 2 * count].tolist()[1::2]:
        if 0 <= slot - place.first < place.count:
            yield slot


def _rows(name: str, batch: Batch) -> list[int] | None:
    """Which rows of an operand that belongs to all sequences a launch writes; None = the operand is the launch's."""
    match name:
        case "kv":
            return list(batch.token_slots.tolist())
        case "conv_state" | "recurrent_state" if batch.segments:
            shadows = [segment.shadow for segment in batch.segments if segment.boundary]
            return [segment.live for segment in batch.segments] + shadows
        case "conv_state" | "recurrent_state":
            return [slot for _, *slots in batch.moves for slot in slots]
        case "snaps":
            return [snapshot for _, snapshot in batch.moves]
        case "target":
            return [target for _, target in batch.copies]
    return None
