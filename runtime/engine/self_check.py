"""Before the first request on a GPU: each kernel of the plan against the CPU reference of its op.

Launches are the plan's own: its kernels with its constants, on the operands of a real layer, with its weights. What is
read is random; what is written must be what the reference writes, as near as the formats allow (`check_bounds.py`).
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any  # operands and results differ by op

import torch

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.ops import SHARED_OPERANDS
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.check_bounds import (
    CHECKS,
    SUMS,
    WIDE,
    Difference,
    bound_of,
    difference,
    half_unit,
    routed,
)
from firmtoken.runtime.engine.check_operands import SHARED, Host, Operands
from firmtoken.runtime.engine.check_rows import Case, cases, device_batches, reference_batches
from firmtoken.runtime.engine.launches import Launch
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.runtime.kernels import CARDS, load_entry
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.shared_expert.halves import shared_down, shared_gate_up

SEED = 20261201
HALVES: dict[str, Callable[..., None]] = {"moe_gate_up": shared_gate_up, "moe_down": shared_down}
"""References of what these ops do for the shared expert."""
ROUTERS = ("route", "route_sigmoid")

Kind = list[tuple[Case, Launch]]
"""Launches that differ only in their rows and in where they stand."""


class KernelWrong(HintedFault):
    """A kernel does not compute what its reference does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One launch that was checked."""

    op: str
    kernel: str
    phase: str
    rows: int
    place: dict[str, int]
    """Where in the loops it stands: `l` is the layer."""
    worst: Difference


def check_kernels(plan: Plan, interpreter: Interpreter, alive: Callable[[], None]) -> list[Checked]:
    """What was found, all of it within bounds; raises `KernelWrong`. Everything but weights is zero afterwards.

    `alive` is called while it goes on.
    """
    with torch.inference_mode():
        checker = Checker(plan, interpreter)
        found: list[Checked] = []
        for kind in checker.kinds():
            alive()
            found += [checker.check(case, launch) for case, launch in kind]
        checker.clear()
    return found


class Checker:
    """All launches of one plan that are checked."""

    def __init__(self, plan: Plan, interpreter: Interpreter) -> None:
        self._plan = plan
        self._interpreter = interpreter
        self._builder = interpreter.batch_builder()
        self._generator = torch.Generator().manual_seed(SEED)
        self._op = ""
        self._weights: Host = {}  # decoded ones of the op that is being checked

    def kinds(self) -> list[Kind]:
        """Every kind of launch of the plan, in the last layer that has it: addresses are largest there. By op."""
        found: dict[tuple[Any, ...], Kind] = {}
        for case in cases(self._plan):
            last: dict[tuple[Any, ...], Launch] = {}
            for item in self._interpreter.bind(case.program, case.cut):
                if isinstance(item, Launch) and item.step.step.op in CHECKS:
                    last[_kind(item, case.program)] = item
            for key, launch in last.items():
                found.setdefault(key, []).append((case, launch))
        return [found[key] for key in sorted(found)]

    def clear(self) -> None:
        """What batches left."""
        for name in ("decode.batch", "span.batch"):
            if any(row.name == name for row in self._plan.buffers):
                self._interpreter.views.tensor(Value(name)).zero_()
        if self._plan.device.kind == "cuda":
            torch.cuda.empty_cache()

    def check(self, case: Case, launch: Launch) -> Checked:
        """Runs it, its reference, and compares; raises `KernelWrong`."""
        op = launch.step.step.op
        batch = reference_batches(self._plan, case)[launch.key]
        if op != self._op:
            self._op = op
            self._weights.clear()
        operands = Operands(self._plan, launch, case.numbers, batch, self._weights)
        operands.fill(self._generator)
        host = operands.host()
        launch.kernel(device_batches(case, self._builder)[launch.key])
        self._interpreter.drain()
        found = {name: operands.read(name) for name in operands.writes}
        if op in ROUTERS:
            differences = _of_router(operands, host, found, batch)
        else:
            run_reference(launch.choice, launch.step.indices, batch, host)
            differences = [_compared(op, operands, name, host, found) for name in found]
        operands.clear()
        worst = max(differences, key=lambda one: one.share)
        checked = Checked(
            op=op,
            kernel=launch.choice.kernel,
            phase=launch.choice.phase,
            rows=case.rows,
            place=launch.step.at,
            worst=worst,
        )
        if worst.share > 1:
            raise KernelWrong(sentence(checked), hint_for(launch.choice))
        return checked


def run_reference(
    choice: KernelChoice, indices: Mapping[str, int], batch: Batch, host: Host
) -> None:
    """What a launch does, in plain torch on `host`, also for the shared expert where the kernel takes that too."""
    op = choice.op
    shared = set(SHARED_OPERANDS.get(op, ())) & host.keys()
    kernel = reference_of(op, choice.phase)
    known = inspect.signature(kernel).parameters
    own = {name: operand for name, operand in host.items() if name not in shared}
    numbers = {**choice.constants, **indices}
    if op == "embed":  # the table has been brought over in the order of the rows
        batch = replace(batch, token_ids=torch.arange(batch.rows))
    kernel(batch, **own, **{name: value for name, value in numbers.items() if name in known})
    if shared:
        half = HALVES[op]
        takes = inspect.signature(half).parameters
        half(**{name: operand for name, operand in host.items() if name in takes})


@lru_cache
def reference_of(op: str, phase: str) -> Callable[..., Any]:
    """The CPU's kernel for numbers in fp32."""
    able = [
        card
        for card in CARDS
        if card.op == op
        and "cpu" in card.devices
        and "fp32" in card.formats
        and phase in card.phases
    ]
    return load_entry(min(able, key=lambda card: card.rank).entry)


def sentence(checked: Checked) -> str:
    """What is wrong, for people."""
    layer = f" of layer {checked.place['l']}" if "l" in checked.place else ""
    worst = checked.worst
    found = "no number or another one"
    if math.isfinite(worst.found):
        found = f"off by {worst.found:.2g} of its row's largest, at most {worst.bound:.2g} expected"
    return (
        f"kernel `{checked.kernel}` of `{checked.op}` does not compute what its reference does: in {checked.phase}"
        f" with {checked.rows} rows{layer}, `{worst.operand}` is {found}"
    )


def summary(found: list[Checked]) -> str:
    """A line for the log, when all is well."""
    kernels = {(one.op, one.kernel, one.phase) for one in found}
    worst = max(found, key=lambda one: one.worst.share)
    return (
        f"kernels compute what their references do: {len(found)} launches of {len(kernels)} kernels;"
        f" nearest to its bound is `{worst.op}` by `{worst.kernel}`, at {worst.worst.share:.0%} of it"
    )


def hint_for(choice: KernelChoice) -> str:
    """Another kernel where one would run."""
    ready = {card.name for card in CARDS if card.op == choice.op and card.status == "ready"}
    if any(other.usable and other.kernel in ready for other in choice.rejected):
        return f"use another one: `kernels: {{{choice.op}.{choice.phase}: {{avoid: [{choice.kernel}]}}}}`"
    return "please report it: no other kernel runs this here"


def _kind(launch: Launch, program: str) -> tuple[Any, ...]:
    step = launch.step
    names = sorted((name, value.name) for name, value in step.operands.items())
    weights = tuple(value.name for value in step.weights)
    return step.step.op, weights, program, step.step.kernel, tuple(names)


def _compared(op: str, operands: Operands, name: str, host: Host, found: Host) -> Difference:
    written = operands.dtype(name)
    wanted, mine = host[name], found[name]
    if CHECKS[op].roundings is None and written.is_floating_point:
        wanted = wanted.to(written).float()
    if name in SHARED:  # number 0 is padding's, in which anything may lie
        dim = SHARED[name][0]
        wanted, mine = (one.narrow(dim, 1, one.shape[dim] - 1) for one in (wanted, mine))
    return Difference(
        operand=name,
        found=difference(mine, wanted, WIDE.get(name, 1)),
        bound=bound_of(op, written, operands.activations),
    )


def _of_router(operands: Operands, host: Host, found: Host, batch: Batch) -> list[Difference]:
    bounds = {"ids": SUMS, "wts": SUMS + half_unit(operands.activations)}
    return [
        Difference(operand=name, found=apart, bound=bounds[name])
        for name, apart in routed(found, host, batch).items()
    ]
