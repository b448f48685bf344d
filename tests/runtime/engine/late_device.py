"""A GPU that does what it is told as late as it likes: real scheduler, engine, batches and pinned tokens around it.

Copies and launches are only enqueued, on streams as a GPU has them; they run when somebody waits for them, or at
random before. The model remembers texts: what a row draws depends on every key that it attends to and on its state.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundYield, Value
from firmtoken.runtime.engine import device_batches, drawn, engine
from firmtoken.runtime.engine.batches import SPAN, Batches, Cut
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.drawn import DrawnTokens, Read
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.program import Abandoned, Counters
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN
from firmtoken.schema.load import load_profile

PROFILE = Path(__file__).parents[2] / "device" / "tiny-cuda.yaml"
VOCAB = 12
PAGE, PAGES, SNAPSHOTS, CONTEXT = 4, 46, 8, 160
FULL = 2**64
MAIN, LINK = "main", "link"


def late_plan(requests: int = 3) -> Plan:
    """Of a GPU; small pages, and fewer than three long requests take."""
    overrides = ("serving.context=1k", f"serving.requests={requests}", "serving.pool=1k")
    plan = compile_profile(load_profile(str(PROFILE), overrides).profile, CARDS)
    return replace(
        plan,
        kv_cache=replace(plan.kv_cache, page_size=PAGE, pages=PAGES, snapshot_slots=SNAPSHOTS),
        context=replace(plan.context, effective=CONTEXT),
        schedule=replace(plan.schedule, decode_every_units=1, prefill_graph_rows=(16, 64)),
        admission=replace(plan.admission, output_reserve=1),
    )


def next_state(state: int, token: int) -> int:
    return (state * 0xD6E8FEB86659FD93 + token + 0x632BE59BD9B4E019) % FULL


def key_of(seen: int, state: int, position: int) -> int:
    """What a token leaves in the cache: it depends on the keys before it, and on the state behind it."""
    return ((seen ^ state) * 0x9E3779B97F4A7C15 + position) % FULL


def token_of(key: int) -> int:
    return (key >> 40) % VOCAB


def continued(prompt: list[int], count: int) -> list[int]:
    """What the model says after a prompt."""
    state, seen, text = 0, 0, list(prompt)
    for position in range(len(prompt) + count - 1):
        state = next_state(state, text[position])
        key = key_of(seen, state, position)
        seen = (seen + key) % FULL
        if position + 1 == len(text):
            text.append(token_of(key))
    return text[len(prompt) :]


class Late:
    """Streams of launches that have not run yet."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.eagerness = self._random.choice((0.0, 0.2, 0.5, 0.8))
        """How likely a launch runs before anybody waits for it."""
        self._waiting: dict[str, list[tuple[Callable[[], object], dict[str, int]]]] = {
            MAIN: [],
            LINK: [],
        }
        self._done = {MAIN: 0, LINK: 0}

    def happens(self, chance: float) -> bool:
        """Whether something does that is as likely."""
        return self._random.random() < chance

    def at(self, stream: str) -> int:
        """How many launches the stream has been given."""
        return self._done[stream] + len(self._waiting[stream])

    def launch(self, run: Callable[[], object], stream: str = MAIN, **after: int) -> None:
        """Enqueues; `after`: so many launches of another stream must have run."""
        self._waiting[stream].append((run, after))
        while self.happens(self.eagerness):
            some = [name for name, waiting in self._waiting.items() if waiting]
            if not some:
                return
            self._step(self._random.choice(some))

    def wait(self, stream: str, count: int) -> None:
        """Runs what must have run."""
        while self._done[stream] < count:
            self._step(stream)

    def drain(self) -> None:
        for stream in self._waiting:
            self.wait(stream, self.at(stream))

    def _step(self, stream: str) -> None:
        run, after = self._waiting[stream][0]
        for other, count in after.items():
            self.wait(other, count)
        self._waiting[stream].pop(0)
        self._done[stream] += 1
        run()


@dataclass(slots=True)
class LateTensor:
    """A tensor whose copies are enqueued; reading it on the host finds what is there by now."""

    late: Late
    now: torch.Tensor
    is_cuda = True

    def __getitem__(self, key: Any) -> "LateTensor":
        return LateTensor(self.late, self.now[key])

    def __len__(self) -> int:
        return len(self.now)

    def view(self, *shape: Any) -> "LateTensor":
        return LateTensor(self.late, self.now.view(*shape))

    def numel(self) -> int:
        return self.now.numel()

    def copy_(self, source: Any, non_blocking: bool = False) -> "LateTensor":
        found = source.now if isinstance(source, LateTensor) else source
        self.late.launch(partial(self.now.copy_, found))
        return self

    def clamp_(self, **bounds: int) -> "LateTensor":
        self.late.launch(partial(self.now.clamp_, **bounds))
        return self

    def numpy(self) -> Any:
        return self.now.numpy()

    def tolist(self) -> Any:
        return self.now.tolist()


class LateEvent:
    """Of `main`."""

    def __init__(self, late: Late) -> None:
        self._late, self._at = late, 0

    def record(self) -> None:
        self._at = self._late.at(MAIN)

    def synchronize(self) -> None:
        self._late.wait(MAIN, self._at)


class LateTorch:
    """torch, whose pinned tensors and events are this device's."""

    def __init__(self, late: Late) -> None:
        self._late = late
        self.cuda = SimpleNamespace(Event=partial(LateEvent, late))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: int, dtype: torch.dtype, pin_memory: bool) -> LateTensor:
        return LateTensor(self._late, torch.zeros(*size, dtype=dtype))


class LateInterpreter:
    """With the face that `Engine` knows."""

    def __init__(self, plan: Plan, late: Late, patch: pytest.MonkeyPatch) -> None:
        for module in (device_batches, drawn):
            patch.setattr(module, "torch", LateTorch(late))
        patch.setattr(engine, "fill_slots", lambda plan, views: None)
        self.plan, self.late = plan, late
        self.position, self.counters = Position(), Counters()
        self.keys = np.zeros(PAGES * PAGE, dtype=np.uint64)
        self.states = [0] * plan.kv_cache.state_slots
        self.snapshots = [0] * SNAPSHOTS
        count = plan.schedule.max_num_seqs
        self.places = {
            **{
                name: torch.zeros(2**20, dtype=torch.uint8)
                for name in ("decode.batch", "span.batch")
            },
            **{
                f"{name}.tokens": torch.full((count,), -7)
                for name in ("decode", "prefill", "extend")
            },
        }
        self.views: Any = SimpleNamespace(
            tensor=lambda value: LateTensor(late, self.places[str(value)])
        )
        self.under_way = self.most_under_way = 0
        self.strange = 0.0
        """How likely a row of a decode step has logits that are no numbers."""
        self._drawn = DrawnTokens(count)
        self._snapped = 0

    def batch_builder(self) -> DeviceBatches:
        return DeviceBatches(self.plan, self.views)

    def run(self, name: str, cut: Cut, batches: Batches, on_yield: Any = None) -> None:
        if name == "park":
            self._park(batches[SPAN].moves)
            return
        after = {LINK: self._snapped}
        if name == "decode":
            rows: Any = batches[SPAN]
            self.late.launch(partial(self._decode, rows), **after)
        else:
            self.late.launch(partial(self._restore, batches[SPAN]), **after)
            try:
                for _ in range(2):
                    if on_yield is not None:
                        on_yield(BoundYield(program="decode", at={}))
                self.late.launch(partial(self._span, batches["tokens", 0], f"{name}.tokens"))
            except Abandoned:
                self.drain()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)

    def bring(self, program: str, count: int) -> Read:
        return self._drawn.bring(self.views.tensor(Value(f"{program}.tokens"))[:count])

    def settle(self, program: str) -> None:
        self.under_way -= 1

    def deadline(self, program: str) -> float:
        return 1.0

    def drain(self) -> None:
        self.late.drain()

    def recover(self) -> None:
        self.late.drain()
        self.under_way = 0

    def _park(self, moves: tuple[tuple[int, ...], ...]) -> None:
        for state, snapshot in moves:
            self.late.launch(
                partial(self._snapshot, state, snapshot), LINK, **{MAIN: self.late.at(MAIN)}
            )
        self._snapped = self.late.at(LINK)

    def _snapshot(self, state: int, snapshot: int) -> None:
        self.snapshots[snapshot] = self.states[state]

    def _decode(self, rows: DeviceRows) -> None:
        field = partial(_now, rows)
        for row in range(field("num_rows")[0]):
            key = self._token(rows, row, row, field("live")[row])
            if field("boundary")[row]:
                self.states[field("shadow")[row]] = self.states[field("live")[row]]
            lost = self.late.happens(self.strange)
            self.places["decode.tokens"][row] = NO_TOKEN if lost else token_of(key)

    def _restore(self, rows: DeviceRows) -> None:
        for snapshot, live, shadow in _now(rows, "restores"):
            if live >= 0:
                state = self.snapshots[snapshot] if snapshot >= 0 else 0
                self.states[live] = self.states[shadow] = state

    def _span(self, rows: DeviceRows, tokens: str) -> None:
        field = partial(_now, rows)
        firsts = field("first_rows")
        for row in range(field("num_rows")[0]):
            number = field("sequences")[row]
            live, shadow = field("live")[number], field("shadow")[number]
            key = self._token(rows, row, number, live)
            if row + 1 - firsts[number] == field("boundary")[number]:
                self.states[shadow] = self.states[live]
            self.places[tokens][number] = token_of(key)

    def _token(self, rows: DeviceRows, row: int, sequence: int, live: int) -> int:
        """One row, as attention and a linear layer see it."""
        position, token = _now(rows, "positions")[row], _now(rows, "token_ids")[row]
        pages = np.array(_now(rows, "pages")[sequence][: -(-position // PAGE)], dtype=np.int64)
        slots = (pages[:, None] * PAGE + np.arange(PAGE)).reshape(-1)[:position]
        seen = int(self.keys[slots].sum(dtype=np.uint64))
        self.states[live] = next_state(self.states[live], token)
        key = key_of(seen, self.states[live], position)
        self.keys[_now(rows, "token_slots")[row]] = key
        return key


def _now(rows: DeviceRows, name: str) -> Any:
    """What lies there when the launch runs."""
    return getattr(rows, name).tolist()
