"""Runs a list of launches in any order that streams and events allow, over bytes that are poisoned between lives."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray
from tests.proofs.scenario import GRAPH, Results, Task, short_life
from tests.runtime.engine.conftest import fill_weights

from firmtoken.compiler.placement import placement
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.compiler.sessions import HOST
from firmtoken.runtime.engine.loading import fill_slots
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.memory.arena import Arena

POISON = 0x7FFFFFFF
"""A NaN as fp32; as an integer, an index beyond everything."""
SMALL = 0x40
"""Bytes below it make small numbers in any format."""
STREAMS = ("main", HOST, GRAPH, "link")
STRICT = tuple(permutations(STREAMS))
"""Who goes first whenever it may: from side streams as late as allowed to as early as allowed."""
NOISE = (0.1, 0.3, 0.6, 1.0)
"""How often somebody else goes first, in the orders behind the strict ones."""

Bytes = NDArray[np.int32]


class Order:
    """One way to go through the launches; the first 24 are strict."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        # From both ends by turns: the most different ones first.
        half, odd = divmod(number % len(STRICT), 2)
        self._first = STRICT[-1 - half if odd else half]
        rounds = number // len(STRICT)
        self._noise = NOISE[rounds % len(NOISE)] if rounds else 0.0

    def pick(self, ready: Sequence[str]) -> str:
        """One of the streams whose next launch may run."""
        if self._noise and self._random.random() < self._noise:
            return self._random.choice(ready)
        return min(ready, key=self._first.index)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the order of a list must obey, and which bytes each launch makes worthless."""

    queues: dict[str, tuple[int, ...]]
    """Stream -> its launches, in issue order."""
    follows: tuple[tuple[int, ...], ...]
    """Per launch: the recorders of the events that it waits for."""
    fresh: tuple[tuple[Bytes, ...], ...]
    """Per launch: bytes whose old content it must not need."""
    lives: tuple[tuple[int, ...], ...]
    """Per launch: numbers of the lives that it touches."""
    life_sizes: tuple[int, ...]
    """Per life: launches that touch it."""
    life_bytes: tuple[Bytes, ...]


class Orders:
    """A scenario and its memory, to be run again and again."""

    def __init__(self, plan: Plan, *, ignore_holds: bool = False) -> None:
        self.arena = arena = Arena(plan.spaces, {})
        self._plan = plan
        self._interpreter = Interpreter(plan, arena)
        fill(plan, self._interpreter.views)
        self._scenario = short_life(plan, self._interpreter, ignore_holds=ignore_holds)
        self.tasks = tuple(self._scenario.tasks)
        self._shape = _shape(plan, arena, self.tasks)
        memories = [arena.device, *(arena.host[name] for name in arena.host if name != "bank")]
        self._kept = [(memory, memory.clone()) for memory in memories]

    def close(self) -> None:
        """Ends the interpreter's threads."""
        self._interpreter.close()

    def reissue(self, change: Callable[[Task], Task]) -> None:
        """From now on every launch is as changed."""
        self.tasks = tuple(map(change, self.tasks))
        self._shape = _shape(self._plan, self.arena, self.tasks)

    def without(self, is_dropped: Callable[[Task, Value], bool]) -> None:
        """From now on launches do not wait for these events."""
        self._shape = replace(self._shape, follows=_follows(self.tasks, is_dropped))

    def run(self, order: Order | None) -> Results:
        """Runs all launches; None is the order in which they were issued. A kernel may raise anything."""
        self.restart()
        left = list(self._shape.life_sizes)
        with torch.inference_mode():
            for number in range(len(self.tasks)) if order is None else self.walk(order):
                for content in self._shape.fresh[number]:
                    content.fill(POISON)
                self.tasks[number].run()
                for life in self._shape.lives[number]:
                    left[life] -= 1
                    if not left[life]:
                        self._shape.life_bytes[life].fill(POISON)
        return self._scenario.results

    def restart(self) -> None:
        """Everything as before the first launch; what nobody has written yet is poison."""
        for memory, content in self._kept:
            memory.copy_(content)
        self._scenario.restart()
        for poisoned in self._shape.life_bytes:
            poisoned.fill(POISON)

    def walk(self, order: Order) -> Iterator[int]:
        """Numbers of launches."""
        queues, follows = self._shape.queues, self._shape.follows
        heads = dict.fromkeys(queues, 0)
        done = [False] * len(self.tasks)
        for _ in self.tasks:
            ready = [
                stream
                for stream, at in heads.items()
                if at < len(queues[stream]) and all(done[n] for n in follows[queues[stream][at]])
            ]
            stream = order.pick(ready)
            number = queues[stream][heads[stream]]
            heads[stream] += 1
            yield number
            done[number] = True


def fill(plan: Plan, views: Views) -> None:
    """Random weights, keys, values and states; a snapshot that nobody took is no number."""
    fill_weights(plan, views)
    generator = torch.Generator().manual_seed(7)
    if any(part.dtype != "fp32" for part in plan.experts.slot_parts):
        for layer in range(len(plan.model.layer_kinds)):
            bank = views.tensor(Value("bank", (layer,)))
            bank.random_(0, SMALL, generator=generator)
        fill_slots(plan, views)
    for row in plan.buffers:
        if row.name in ("kv", "conv_state", "recurrent_state", "snaps"):
            for layer, kind in enumerate(plan.model.layer_kinds):
                if kind == row.index[0]:
                    content = views.tensor(Value(row.name, (layer, 0)[: len(row.index)]))
                    drawn = torch.randn(content.shape, generator=generator) / 2
                    content.copy_(drawn.fill_(torch.nan) if row.name == "snaps" else drawn)


def _follows(
    tasks: Sequence[Task], is_dropped: Callable[[Task, Value], bool]
) -> tuple[tuple[int, ...], ...]:
    follows = []
    recorded: dict[Value, int] = {}
    for number, task in enumerate(tasks):
        waits = (event for event in task.waits if event in recorded)
        follows.append(tuple(recorded[e] for e in waits if not is_dropped(task, e)))
        recorded |= dict.fromkeys(task.records, number)
    return tuple(follows)


def _shape(plan: Plan, arena: Arena, tasks: Sequence[Task]) -> Shape:
    places = placement(plan.buffers, plan.model.layer_kinds)
    queues: dict[str, list[int]] = {}
    fresh: list[tuple[Bytes, ...]] = []
    lives: list[tuple[int, ...]] = []
    life_sizes: list[int] = []
    life_bytes: list[Bytes] = []
    latest: dict[Value, int] = {}

    def begin(value: Value) -> None:
        offset, size = places.span(value)
        content = arena.bytes_of(places.buffer(value).space, offset, size)
        latest[value] = len(life_sizes)
        life_sizes.append(0)
        life_bytes.append(content.numpy().view(np.int32))

    for number, task in enumerate(tasks):
        queues.setdefault(task.stream, []).append(number)
        touched = [
            v for v in dict.fromkeys((*task.reads, *task.writes)) if not places.persistent(v)
        ]
        begun = [
            value
            for value in touched
            if value not in task.reads and (not task.continues or places.one_tile(value))
        ]
        for value in begun:
            begin(value)
        for value in touched:
            life_sizes[latest[value]] += 1
        fresh.append(tuple(life_bytes[latest[value]] for value in begun))
        lives.append(tuple(latest[value] for value in touched))
    return Shape(
        queues={stream: tuple(queue) for stream, queue in queues.items()},
        follows=_follows(tasks, lambda task, event: False),
        fresh=tuple(fresh),
        lives=tuple(lives),
        life_sizes=tuple(life_sizes),
        life_bytes=tuple(life_bytes),
    )
