"""Kernels "of a GPU" for tests without one: references that take what a GPU's kernels take.

An attribute's name is `OP__PHASE`; `stand_in` gives each kernels row of a plan such an entry. `PLANTED` lets one go
wrong.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.ops import find_op
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.check_operands import decoded, decoded_slot
from firmtoken.runtime.engine.self_check import run_reference
from firmtoken.runtime.kernels.batch import Batch, Draw, Segment
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots
from firmtoken.runtime.kernels.operand_order import ORDERED, columns_at

Fault = Callable[[DeviceRows, dict[str, Any]], None]
PLANTED: dict[str, Fault] = {}
"""Op -> what happens to its operands once it has run."""
CHOICES: dict[str, KernelChoice] = {}


def stand_in(plan: Plan) -> Plan:
    """The plan with these kernels."""
    rows = []
    for row in plan.kernels:
        name = f"{row.op}__{row.phase}"
        rows.append(replace(row, status="ready", entry=f"{__name__}:{name}"))
        CHOICES[name] = row
    return replace(plan, kernels=tuple(rows))


def __getattr__(name: str) -> Callable[..., None]:
    if name not in CHOICES:
        raise AttributeError(name)
    choice = CHOICES[name]

    def kernel(rows: DeviceRows, /, **given: Any) -> None:
        run(choice, rows, given)

    return kernel


def run(choice: KernelChoice, rows: DeviceRows, given: dict[str, Any]) -> None:
    """The reference on copies, which go back in the operands' formats."""
    op = find_op(choice.op)
    names = [name.rstrip("?") for name in (*op.reads, *op.writes, *op.weights)]
    host = {name: as_reference(name, given) for name in names if name in given}
    ordered = ORDERED.get((choice.op, choice.kernel), ())
    for name in ordered:
        host[name] = host[name][
            :, columns_at(host[name].shape[1], quads=quads_of(choice)).argsort()
        ]
    indices = {name: given[name] for name in op.indices if name in given}
    batch = batch_of(rows)
    if op.name == "embed":
        host["table"] = host["table"][batch.token_ids]
    if op.name not in ("mark", "fetch"):
        run_reference(choice, indices, batch, host)
    for name in op.writes:
        name = name.rstrip("?")
        if name in given:
            found = host[name]
            if name in ordered:
                found = found[:, columns_at(found.shape[1], quads=quads_of(choice))]
            write_back(name, given, found)
    if op.name in PLANTED:
        PLANTED[op.name](rows, given)


def quads_of(choice: KernelChoice) -> int:
    return int(choice.constants["quads"])


def as_reference(name: str, given: dict[str, Any]) -> Any:
    operand = given[name]
    if isinstance(operand, ExpertSlots):
        return replace(operand, arena=replace(operand.arena, matrices=matrices_of(operand.arena)))
    if name == "snaps" and operand.dtype == torch.uint8:
        end = given["conv_state"][0].numel() * 2
        parts = operand[:, :end].contiguous(), operand[:, end:].contiguous()
        return torch.cat((parts[0].view(torch.bfloat16).float(), parts[1].view(torch.float32)), 1)
    return decoded(operand).clone()


def matrices_of(arena: ExpertArena) -> dict[str, "Decoding"]:
    return {part: Decoding(arena, part) for part in ("gate_up", "down")}


class Decoding:
    """Matrices by slot, decoded when they are asked for."""

    def __init__(self, arena: ExpertArena, part: str) -> None:
        self._arena, self._part = arena, part

    def __getitem__(self, slot: int) -> torch.Tensor:
        return decoded_slot(self._arena, slot, self._part)


def write_back(name: str, given: dict[str, Any], found: torch.Tensor) -> None:
    operand = given[name]
    if name == "snaps" and operand.dtype == torch.uint8:
        elements = given["conv_state"][0].numel()
        operand[:, : 2 * elements] = found[:, :elements].bfloat16().view(torch.uint8)
        operand[:, 2 * elements :] = found[:, elements:].contiguous().view(torch.uint8)
    else:
        operand.copy_(found)


def batch_of(rows: DeviceRows) -> Batch:
    """What references read, from what a GPU reads."""
    firsts = rows.first_rows.tolist()
    segments = tuple(
        Segment(
            first=firsts[number],
            rows=firsts[number + 1] - firsts[number],
            start=int(rows.starts[number]),
            pages=rows.pages[number].long(),
            live=int(rows.live[number]),
            shadow=int(rows.shadow[number]),
            boundary=int(rows.boundary[number]),
        )
        for number in range(len(firsts) - 1)
        if firsts[number] < int(rows.num_rows)
    )
    moves = rows.moves
    if rows.restores is not None:
        moves = tuple(tuple(move) for move in rows.restores.tolist() if move[1] >= 0)
    draws: list[Draw] = []
    if rows.draws is not None:
        names = Draw.__slots__
        columns = [getattr(rows.draws, name).tolist() for name in names]
        draws = [Draw(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    return Batch(
        rows=len(rows.token_ids),
        real_rows=int(rows.num_rows),
        token_ids=rows.token_ids.long(),
        positions=rows.positions.long(),
        token_slots=rows.token_slots,
        segments=segments,
        copies=() if rows.copies is None else tuple((a, b) for a, b in rows.copies.tolist()),
        moves=moves,
        draws=tuple(draws),
    )
