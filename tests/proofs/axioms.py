"""What a kernel touches, against what its step declares: everything else is poisoned, and compared afterwards.

Bytes count as declared by the rows of the launch, by the pages and state slots of its sequences, and by expert slots.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.proofs.orders import POISON, Orders
from tests.proofs.scenario import Task, operands

from firmtoken.compiler.placement import placement
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep, Value
from firmtoken.runtime.kernels.batch import Batch

Mask = NDArray[np.bool_]
Content = tuple[NDArray[np.int32], ...]
PADDING_SLOT = 0


@dataclass(frozen=True, slots=True)
class Declared:
    """Words of each memory that a launch may read, and those that it may write."""

    read: tuple[Mask, ...]
    written: tuple[Mask, ...]


class Axioms:
    """Goes through a scenario in its order, and looks at every launch."""

    def __init__(self, plan: Plan) -> None:
        self.orders = Orders(plan)
        self._plan = plan
        self._places = placement(plan.buffers, plan.model.layer_kinds)
        arena = self.orders.arena
        self._memories = [arena.device, *arena.host.values()]
        self._words = [memory.numpy().view(np.int32) for memory in self._memories]
        self.tasks = self.orders.tasks

    def close(self) -> None:
        """Ends the interpreter's threads."""
        self.orders.close()

    def faults(
        self, spoilt: Callable[[Task], Callable[[], object] | None] | None = None
    ) -> list[str]:
        """What each launch touched beyond its declaration; `spoilt`: runs instead, and nothing else is looked at."""
        self.orders.restart()
        found: list[str] = []
        with torch.inference_mode():
            for task in self.tasks:
                run = task.run if spoilt is None else spoilt(task)
                if run is None or task.launch is None:
                    task.run()
                else:
                    found += (f"{task.label}: {fault}" for fault in self._look(task, run))
        return found

    def operand(self, task: Task, name: str) -> torch.Tensor:
        """An operand of a launch, cut to its rows."""
        assert task.launch is not None
        found = operands(task.launch)[name]
        assert isinstance(found, torch.Tensor)
        return found

    def _look(self, task: Task, run: Callable[[], object]) -> Iterator[str]:
        """Runs it with zeros and with poison in all that it may not read; goes on with what it wrote."""
        assert task.launch is not None and task.batch is not None
        declared = self._declared(task.launch.step, operands(task.launch), task.batch)
        before = self._content()
        blank = self._fill(declared, 0)
        result = run()
        after = self._content()
        self._restore(before)
        poisoned = self._fill(declared, POISON)
        try:
            again = run()
        except Exception as error:  # an index made of poison may raise anything
            again = repr(error)
        found = self._content()
        self._restore(before)
        for number, words in enumerate(self._words):
            touched = declared.read[number] | (found[number] != poisoned[number])
            new = declared.written[number] & touched
            words[new] = after[number][new]
        if again != result:
            yield f"returned {result}, and {again} with poison in what it does not declare to read"
        yield from _compare(declared, blank, after, poisoned, found)

    def _fill(self, declared: Declared, word: int) -> Content:
        for words, readable in zip(self._words, declared.read, strict=True):
            words[~readable] = word
        return self._content()

    def _content(self) -> Content:
        return tuple(words.copy() for words in self._words)

    def _restore(self, content: Content) -> None:
        for words, kept in zip(self._words, content, strict=True):
            words[:] = kept

    def _declared(self, step: BoundStep, bound: dict[str, Any], batch: Batch) -> Declared:
        masks = Declared(
            tuple(np.zeros(words.shape, dtype=np.bool_) for words in self._words),
            tuple(np.zeros(words.shape, dtype=np.bool_) for words in self._words),
        )
        names = {value: name for name, value in step.operands.items()}
        for side, values in (
            (masks.read, (*step.reads, *step.weights)),
            (masks.written, step.writes),
        ):
            for value in values:
                name = names.get(value, "")
                tensor = bound.get(name)
                if not isinstance(tensor, torch.Tensor):
                    tensor = self._whole(value)
                for part in _parts(name, tensor, batch, written=side is masks.written):
                    self._mark(side, part)
        return masks

    def _whole(self, value: Value) -> torch.Tensor:
        offset, size = self._places.span(value)
        return self.orders.arena.bytes_of(self._places.buffer(value).space, offset, size)

    def _mark(self, masks: tuple[Mask, ...], part: torch.Tensor) -> None:
        assert part.is_contiguous()
        for memory, mask in zip(self._memories, masks, strict=True):
            start = part.data_ptr() - memory.data_ptr()
            if 0 <= start < memory.numel():
                end = start + part.numel() * part.element_size()
                mask[start // 4 : -(-end // 4)] = True
                return
        raise AssertionError("an operand outside of every memory")


def _parts(
    name: str, tensor: torch.Tensor, batch: Batch, *, written: bool
) -> Iterator[torch.Tensor]:
    """The parts of what belongs to all sequences that are those of this launch; else the whole operand."""
    match name:
        case "kv" if written:
            rows = tensor.flatten(1, 2)  # [2, tokens, Hkv, D]
            for token in batch.token_slots.tolist():
                yield from (rows[0, token], rows[1, token])
        case "kv":
            for segment in batch.segments:
                for page in segment.pages.tolist():
                    yield from (tensor[0, page], tensor[1, page])
        case "conv_state" | "recurrent_state":
            yield from (tensor[slot] for slot in _state_slots(batch, written=written))
        case "snaps":
            at = 1 if written else 0
            yield from (tensor[move[at]] for move in batch.moves if move[at] >= 0)
        case "target":
            yield from (tensor[target] for _, target in batch.copies)
        case _:
            yield tensor


def _state_slots(batch: Batch, *, written: bool) -> Iterator[int]:
    for segment in batch.segments:
        yield segment.live
        if written and segment.boundary:
            yield segment.shadow
    for source, *slots in batch.moves:
        yield from slots if written else (source,)
    if written and batch.real_rows < batch.rows:
        yield PADDING_SLOT


def _compare(
    declared: Declared, blank: Content, after: Content, poisoned: Content, found: Content
) -> Iterator[str]:
    for number, written in enumerate(declared.written):
        untouched = found[number] == poisoned[number]
        outside = ~written & ~untouched
        if outside.any():
            yield f"writes {outside.sum()} words that it does not declare"
        # A declared word may be left alone, but then in both runs.
        left = untouched & (after[number] == blank[number])
        other = written & (found[number] != after[number]) & ~left
        if other.any():
            yield f"writes {other.sum()} other words with poison in what it does not declare to read"
