"""Operands of one launch of the self-check: filled with random numbers, and brought over to where references run.

References compute in fp32 on the CPU. Of what all sequences share they get the pages and slots of a case only, of
experts those that its rows visit, of the embedding table the rows that are asked for.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any  # operands differ by op

import torch

from firmtoken.compiler.ops import find_op
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.check_rows import Numbers
from firmtoken.runtime.engine.faults import NAN_BYTE
from firmtoken.runtime.engine.launches import Launch
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots
from firmtoken.runtime.kernels.matrices import CodedMatrix, Matrix, PackedMatrix
from firmtoken.runtime.kernels.moe_down.torch_nvfp4 import decode_down
from firmtoken.runtime.kernels.moe_gate_up.torch_nvfp4 import decode_gate_up
from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.kernels.operand_order import ORDERED, columns_at
from firmtoken.runtime.kernels.pair_slots import ELSEWHERE, PADDED, pair_slots

SHARED = {
    "kv": (1, "pages"),
    "conv_state": (0, "states"),
    "recurrent_state": (0, "states"),
    "snaps": (0, "snapshots"),
}
"""Operands that all sequences share: which dimension counts what of `Numbers`."""
STORED = ("kv", "experts")
PARTS = {"moe_gate_up": "gate_up", "moe_down": "down"}
"""What these ops read of a slot."""
ADDRESSES = ("ids", "map", "slots")
"""Ways to say which expert a pair goes to; references get slots."""
MOST_EXPERTS = 16
"""That the rows of a check visit: to decode every expert of a layer takes a CPU seconds."""
MOST_OUTPUTS = 16_384
"""Of a head that are compared, evenly spread, for the same reason."""
PEAK = 60.0
"""Logits above all others, of the two tokens that a row can draw."""
NOBODY = -7
"""No expert, slot or token, nor what stands for none."""
PERIOD = 67
"""Different rows of an operand, over and over: to draw millions of numbers takes longer than to use them."""
BLOCK_ROWS = 4096
"""Bounds what decoding a large matrix takes beside its result."""

Host = dict[str, Any]
"""Operands of a reference, by name."""


class Operands:
    """Of one launch of a case."""

    def __init__(
        self, plan: Plan, launch: Launch, numbers: Numbers, batch: Batch, weights: Host
    ) -> None:
        """`weights`: decoded ones by the names of their values, kept by the caller for other launches."""
        self._plan = plan
        self._batch = batch
        self._numbers = numbers
        self._weights = weights
        self._values: dict[str, Value] = launch.step.operands
        self._given = launch.kernel.keywords
        op = find_op(launch.step.step.op)
        choice = launch.choice
        self._ordered = ORDERED.get((choice.op, choice.kernel), ())
        self._part = PARTS.get(op.name, "")
        self._every = 1
        """Of so many outputs of a head one is compared."""
        if op.name == "head":
            self._every = -(-self._given["logits"].shape[1] // MOST_OUTPUTS)
        self._quads = int(choice.constants.get("quads", 0))
        self.reads = [name for name in _bare(op.reads) if name in self._values]
        self.writes = [name for name in _bare(op.writes) if name in self._values]
        self._of_weights = [name for name in _bare(op.weights) if name in self._values]

    def dtype(self, name: str) -> torch.dtype:
        """Format of a tensor; bytes where it holds several."""
        operand: torch.Tensor = self._given[name]
        return operand.dtype

    @property
    def activations(self) -> torch.dtype:
        """The shortest format of what is read and written, that of stored keys and values apart."""
        found = {self.dtype(name) for name in (*self.reads, *self.writes) if name not in STORED}
        return max(
            (one for one in found if one.is_floating_point),
            key=lambda one: torch.finfo(one).eps,
            default=torch.float32,
        )

    def fill(self, generator: torch.Generator) -> None:
        """Random numbers in all that is read, in its own format; NaN or nonsense in what is only written."""
        for name in self.writes:
            self._put(name, _poison)  # an input may share its bytes, so inputs come second
        for name in self.reads:
            if name != "experts":
                self._put(name, partial(self._random, name, generator=generator))

    def host(self) -> Host:
        """Everything, as a reference takes it."""
        found = {name: self.read(name) for name in {*self.reads, *self.writes} - {"experts"}}
        found |= {name: self._weight(name) for name in self._of_weights}
        if "experts" in self._values:
            found = {name: host for name, host in found.items() if name not in ADDRESSES}
            found |= self._experts()
        return found

    def read(self, name: str) -> torch.Tensor:
        """One that is no weight: fp32, integers as they are; shared ones as `Numbers` has them."""
        operand: torch.Tensor = self._given[name]
        if name in SHARED:
            operand = self._take(name, operand)
        if name == "logits":
            operand = operand[:, :: self._every]
        if name == "snaps" and operand.dtype == torch.uint8:
            return self._snapshot_rows(operand)
        if name in self._ordered:
            columns = columns_at(operand.shape[1], quads=self._quads)
            return operand.cpu().float().index_select(1, columns.argsort())
        if operand.is_floating_point():
            # Brought over first: a GPU in use has no room for the wider copy.
            return operand.cpu().to(torch.float32, copy=True)
        return operand.to("cpu", copy=True)

    def clear(self) -> None:
        """Zeros, as before."""
        for name in {*self.reads, *self.writes} - {"experts"}:
            self._put(name, torch.Tensor.zero_)

    def _put(self, name: str, write: Callable[[torch.Tensor], Any]) -> None:
        """Lets `write` fill the operand, or the part of it that the case uses."""
        operand = self._given[name]
        if name not in SHARED:
            write(operand)
            return
        part = self._take(name, operand)
        write(part)
        dim, rows = self._rows(name, operand)
        # Not every operation knows fp8: rows go back as bytes.
        operand.view(torch.uint8).index_copy_(dim, rows, part.view(torch.uint8))

    def _take(self, name: str, operand: torch.Tensor) -> torch.Tensor:
        dim, rows = self._rows(name, operand)
        return operand.view(torch.uint8).index_select(dim, rows).view(operand.dtype)

    def _rows(self, name: str, operand: torch.Tensor) -> tuple[int, torch.Tensor]:
        dim, what = SHARED[name]
        return dim, torch.tensor(getattr(self._numbers, what), device=operand.device)

    def _random(self, name: str, operand: torch.Tensor, *, generator: torch.Generator) -> None:
        match name:
            case "ids":
                operand.copy_(self._random_ids(operand.shape, generator))
            case "slots":
                ids = self._random_ids(operand.shape, generator)
                operand.copy_(torch.where(ids < 0, ids, ids + self._given["experts"].first))
            case "map":
                experts = self._given["experts"]
                order = torch.randperm(len(operand), generator=generator) % experts.count
                operand.copy_(experts.first + order)
            case "wts":
                operand.copy_(torch.rand(operand.shape, generator=generator))
                operand[self._batch.real_rows :] = 0
            case "logits":
                operand.copy_(self._random_logits(operand.shape, generator))
            case "snaps" if operand.dtype == torch.uint8:
                operand.copy_(self._random_snapshots(len(operand), generator))
            case _:
                assert operand.is_floating_point(), f"nobody says what `{name}` may hold"
                fill_normal(operand, generator)

    def _random_ids(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """int32 [T,k]: different experts in a row, the first and the last of the layer among all; -1 in padded rows."""
        last = self._plan.experts.per_layer - 1
        count = min(MOST_EXPERTS, last + 1)
        order = torch.rand(shape[0], count, generator=generator).argsort(1)[:, : shape[1]]
        ids = (order * last // (count - 1)).int()
        ids[self._batch.real_rows :] = -1
        return ids

    def _random_logits(self, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
        """[S,V]: in each row two equal peaks, of which a greedy draw takes the first and others either."""
        logits = torch.randn(shape, generator=generator)
        half = shape[1] // 2
        peaks = torch.randint(half, (shape[0], 2), generator=generator)
        peaks[:, 1] += half
        return logits.scatter_(1, peaks, PEAK)

    def _random_snapshots(self, count: int, generator: torch.Generator) -> torch.Tensor:
        rows = [
            torch.randn(count, state[0].numel(), generator=generator).to(state.dtype)
            for state in (self._given["conv_state"], self._given["recurrent_state"])
        ]
        return torch.cat([row.view(torch.uint8) for row in rows], dim=1)

    def _snapshot_rows(self, raw: torch.Tensor) -> torch.Tensor:
        """fp32 [n, elements] of bytes: the conv state's format, then the recurrent state's."""
        conv, recurrent = self._given["conv_state"], self._given["recurrent_state"]
        end = conv[0].numel() * conv.element_size()
        parts = (raw[:, :end].contiguous().view(conv.dtype), raw[:, end:].contiguous())
        return torch.cat((parts[0].float(), parts[1].view(recurrent.dtype).float()), dim=1).cpu()

    def _weight(self, name: str) -> torch.Tensor:
        value = str(self._values[name])
        if name == "table":  # of the embedding: what is asked for
            rows = self._batch.token_ids.to(self._given[name].device)
            table: torch.Tensor = self._given[name]
            return table.index_select(0, rows).cpu().float()
        if value not in self._weights:
            weight = self._given[name]
            self._weights[value] = decoded(every(weight, self._every) if name == "w" else weight)
        found: torch.Tensor = self._weights[value]
        return found

    def _experts(self) -> Host:
        """Those that the rows visit as slots of their own, and in which of them each pair finds its expert."""
        experts: ExpertSlots = self._given["experts"]
        asked = [None if name not in self._given else self._given[name].cpu() for name in ADDRESSES]
        found = pair_slots(experts, *asked)
        visited = {
            slot: number for number, slot in enumerate(sorted({*found} - {PADDED, ELSEWHERE}))
        }
        numbered = [visited.get(slot, slot) for slot in found]
        matrices = tuple(self._slot(experts.arena, slot) for slot in visited)
        arena = ExpertArena(slots=torch.empty(0), parts={}, matrices={self._part: matrices})
        return {
            "experts": ExpertSlots(first=0, count=len(visited), arena=arena),
            "slots": torch.tensor(numbered, dtype=torch.int32).view(self._batch.rows, -1),
        }

    def _slot(self, arena: ExpertArena, slot: int) -> torch.Tensor:
        name = f"{self._part} of slot {slot}"
        if name not in self._weights:
            self._weights[name] = decoded_slot(arena, slot, self._part)
        found: torch.Tensor = self._weights[name]
        return found


def every(weight: Matrix, step: int) -> Matrix:
    """Each `step`-th row of a matrix."""
    match weight:
        case CodedMatrix():
            assert step == 1, "no head is stored in FP8"
            return weight
        case PackedMatrix(packed=packed, scale=scale, globals=globals_, starts=starts):
            return PackedMatrix(
                packed=packed[::step],
                scale=scale.view(torch.uint8)[::step],
                globals=globals_,
                starts=tuple(-(-start // step) for start in starts),
            )
    return weight[::step]


def decoded_slot(arena: ExpertArena, slot: int, part: str) -> torch.Tensor:
    """`gate_up` or `down` of one slot on the CPU, in fp32."""
    matrices = {name: (view[slot].cpu(),) for name, view in arena.parts.items()}
    if "globals" not in matrices:
        return matrices[part][0].float()
    own = ExpertArena(slots=arena.slots, parts={}, matrices=matrices)
    return decode_gate_up(own, 0) if part == "gate_up" else decode_down(own, 0, slice(None))


def fill_normal(operand: torch.Tensor, generator: torch.Generator) -> None:
    """Drawn on the CPU: a seed gives the same numbers there for every device."""
    count = min(PERIOD, operand.shape[0])
    drawn = torch.randn(count, *operand.shape[1:], generator=generator)
    drawn = drawn.to(operand.device, operand.dtype)
    if count == operand.shape[0]:
        operand.copy_(drawn)
    else:
        rows = torch.arange(operand.shape[0], device=operand.device) % count
        torch.index_select(drawn, 0, rows, out=operand)


def decoded(weight: Matrix) -> torch.Tensor:
    """[N,K] on the CPU, in fp32; integers as they are."""
    match weight:
        case CodedMatrix(codes=codes, scales=scales, starts=starts, tail=tail):
            rows = codes.cpu().float()
            for part, scale in zip(_parts(rows, starts), scales.tolist(), strict=True):
                part.mul_(scale)
            return rows if tail is None else torch.cat((rows, tail.cpu().float()))
        case PackedMatrix(packed=packed, scale=scale, globals=globals_, starts=starts):
            return _decoded_nvfp4(packed.cpu(), scale.cpu(), globals_.tolist(), starts)
        case _ if weight.is_floating_point():
            return weight.cpu().float()
    return weight.cpu()


def _decoded_nvfp4(
    packed: torch.Tensor, scale: torch.Tensor, globals_: list[float], starts: tuple[int, ...]
) -> torch.Tensor:
    found = torch.empty(packed.shape[0], 2 * packed.shape[1])
    scale = scale.view(torch.float8_e4m3fn)
    parts = (_parts(rows, starts) for rows in (found, packed, scale))
    for into, codes, scales, factor in zip(*parts, globals_, strict=True):
        for first in range(0, len(into), BLOCK_ROWS):
            block = slice(first, first + BLOCK_ROWS)
            into[block] = dequantise(codes[block], scales[block], factor)
    return found


def _parts(rows: torch.Tensor, starts: tuple[int, ...]) -> Iterator[torch.Tensor]:
    for first, end in pairwise((0, *starts, len(rows))):
        yield rows[first:end]


def _poison(operand: torch.Tensor) -> None:
    if operand.is_floating_point():
        operand.fill_(torch.nan)
    else:
        operand.fill_(NAN_BYTE if operand.dtype == torch.uint8 else NOBODY)


def _bare(names: Iterable[str]) -> Iterator[str]:
    return (name.rstrip("?") for name in names)
