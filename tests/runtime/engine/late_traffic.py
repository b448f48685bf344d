"""Random requests for an engine on a late device, and faults to plant in what keeps its texts right."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.runtime.engine.late_device import (
    CONTEXT,
    VOCAB,
    Late,
    LateInterpreter,
    continued,
)

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine import drawn
from firmtoken.runtime.engine.device_batches import DeviceBatches, Region
from firmtoken.runtime.engine.drawn import DrawnTokens
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.messages import GREEDY, Abort, Add, Done, Preempted, Tokens, Up
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.work import Decode

STOP = 7
FAR = 1_000_000


@dataclass(slots=True)
class Traffic:
    """Random requests; each token that anybody is told is compared with what the model says."""

    plan: Plan
    seed: int
    patch: pytest.MonkeyPatch
    compared: bool = True
    """Else whatever it says goes: the launches are looked at."""
    at_yields: bool = True
    """Requests come and go inside of spans, and streams go on there."""
    engine: Engine = field(init=False)
    chance: random.Random = field(init=False)
    interpreter: LateInterpreter = field(init=False)
    asked: dict[int, Add] = field(default_factory=dict)
    wanted: dict[int, list[int]] = field(default_factory=dict)
    told: dict[int, list[int]] = field(default_factory=dict)
    texts: list[list[int]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    num_added: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.interpreter = LateInterpreter(self.plan, Late(self.seed), self.patch)
        face: Any = self.interpreter
        if not self.at_yields:
            schedule = replace(self.plan.schedule, decode_every_units=FAR)
            self.plan = replace(self.plan, schedule=schedule)
        change = self.change if self.at_yields else lambda: None
        self.engine = Engine(self.plan, face, self.emit, change, checked=True, ahead=True)

    def emit(self, message: Up) -> None:
        if isinstance(message, Tokens):
            for number, token in message.items:
                told = self.told[number]
                told.append(token)
                right = told == self.wanted[number][: len(told)]
                assert right or not self.compared, "not what this text goes on with"
        elif isinstance(message, Done):
            assert message.reason != "error" or "not finite" in message.message
            self.seen[message.reason] += 1
            add = self.asked.pop(message.request_id)
            if message.reason in ("stop", "length") and self.compared:
                assert self.told[message.request_id] == self.wanted[message.request_id]
            self.texts.append(add.token_ids + self.told[message.request_id])
        elif isinstance(message, Preempted):
            self.seen["preempted"] += 1

    def change(self) -> None:
        """Somebody comes or goes."""
        draw = self.chance.random
        if draw() < 0.1 and len(self.asked) < 6:
            self.arrive()
        if draw() < 0.03 and self.asked:
            self.engine.handle(Abort(request_id=self.chance.choice([*self.asked])))

    def arrive(self) -> None:
        """A text goes on, or a new one begins."""
        known = self.chance.choice(self.texts) if self.texts and self.chance.random() < 0.6 else []
        new = [self.chance.randrange(VOCAB) for _ in range(1 + int(self.chance.random() ** 2 * 40))]
        prompt = (known + new)[: CONTEXT - 40]
        most = 1 + int(self.chance.random() * 39)
        text = continued(prompt, most)
        stops = [STOP] if self.chance.random() < 0.7 else []
        wanted = text[: text.index(STOP) + 1] if stops and STOP in text else text
        number, self.num_added = self.num_added, self.num_added + 1
        self.wanted[number], self.told[number] = wanted, []
        self.asked[number] = add = Add(
            request_id=number,
            token_ids=prompt,
            max_output=most,
            sampling=GREEDY,
            stop_token_ids=stops,
        )
        self.engine.handle(add)

    def run(self, num_requests: int) -> None:
        while self.num_added < num_requests or not self.engine.idle:
            if self.num_added < num_requests:
                self.change()
            self.engine.step()
        assert not self.asked
        self.seen["cached"] += self.engine.scheduler.cached_tokens


def overwrite_batches(patch: pytest.MonkeyPatch) -> None:
    """The host writes a batch while the one before is still to be copied."""
    patch.setattr(Region, "wait", lambda region: None)


def keep_one_place(patch: pytest.MonkeyPatch) -> None:
    """What the step ahead draws comes where nobody has read yet what the step before drew."""
    patch.setattr(drawn, "UNDER_WAY", 1)


def read_too_early(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what was drawn."""

    def bring(self: DrawnTokens, tokens: Any) -> Callable[[], list[int]]:
        place, _ = next(self._places)
        host = place[: len(tokens)]
        host.copy_(tokens)
        return lambda: host.tolist()  # type: ignore[no-any-return]

    patch.setattr(DrawnTokens, "bring", bring)


def starve(patch: pytest.MonkeyPatch) -> None:
    """A step ahead runs on no token."""
    patch.setattr(DeviceBatches, "_feed", lambda batches, count: None)


def feed_at_once(patch: pytest.MonkeyPatch) -> None:
    """The host feeds a step ahead, with whatever is there by then."""

    def feed(self: DeviceBatches, count: int) -> None:
        tokens = self._views.tensor(Value("decode.tokens"))
        known = torch.tensor(tokens.tolist()[:count], dtype=torch.int32).clamp(min=0)
        self._decode.device["token_ids"][:count].copy_(known)

    patch.setattr(DeviceBatches, "_feed", feed)


def renew_shadows_ahead(patch: pytest.MonkeyPatch) -> None:
    """Who ends has a newer state in its shadow than the cache is told."""
    following = Scheduler.following

    def anyway(self: Scheduler, decode: Decode) -> Decode | None:
        limits, self.limits = self.limits, replace(self.limits, hybrid=False)
        try:
            return following(self, decode)
        finally:
            self.limits = limits

    patch.setattr(Scheduler, "following", anyway)


def run_ahead_of_prompts(patch: pytest.MonkeyPatch) -> None:
    """Rows of who has ended go on where somebody else is by now."""

    def anyway(self: Scheduler, decode: Decode) -> Decode | None:
        self._admit()
        for one in decode.sequences:
            if one in self.holdings.members:
                self.holdings.cover(one, len(one.token_ids) + 1)
        return replace(decode, ahead=True)

    patch.setattr(Scheduler, "following", anyway)


def copy_states_at_once(patch: pytest.MonkeyPatch) -> None:
    """Snapshots do not wait for the step under way, nor anybody for them."""

    def park(self: LateInterpreter, moves: tuple[tuple[int, ...], ...]) -> None:
        for move in moves:
            self.late.launch(partial(self._snapshot, *move), "link")

    patch.setattr(LateInterpreter, "_park", park)


FAULTS = [
    overwrite_batches,
    keep_one_place,
    read_too_early,
    starve,
    feed_at_once,
    renew_shadows_ahead,
    run_ahead_of_prompts,
    copy_states_at_once,
]
