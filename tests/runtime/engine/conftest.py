"""The small hybrid model with random weights, compiled by the real compiler, and engines built from its plan alone."""

import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_from_json, plan_to_json
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.loading import fill_slots
from firmtoken.runtime.engine.messages import Add, Done, Log, Sampling, Tokens, Up
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.views import Views
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[3] / "profiles"
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


@lru_cache(maxsize=1024)
def random_tensor(name: str, shape: tuple[int, ...], scale: float) -> torch.Tensor:
    """Depends on the name alone, so that every plan of the model gets the same weights."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator) * scale


def fill_weights(plan: Plan, views: Views) -> None:
    counts = {
        "": 1,
        "layer": len(plan.model.layer_kinds),
        "linear": plan.model.layer_kinds.count("linear"),
        "full": plan.model.layer_kinds.count("full"),
    }
    for weight in plan.weights:
        for ordinal in range(counts[weight.axis]):
            scale = 1 / math.sqrt(weight.shape[-1]) if len(weight.shape) > 1 else 0.1
            drawn = random_tensor(f"{weight.name}{ordinal}", weight.shape, scale)
            views.weight(weight.name, ordinal).copy_(drawn + (weight.name.endswith("norm")))
    experts = plan.experts
    for layer in range(counts["layer"]):
        drawn = random_tensor(f"experts{layer}", (experts.per_layer, experts.slot_bytes // 4), 0.08)
        if experts.placement == "resident":
            first = sum(experts.slots_per_layer[:layer])
            views.experts.slots[first : first + experts.per_layer] = drawn.view(torch.uint8)
        else:
            views.tensor(Value("bank", (layer,))).copy_(drawn.view(torch.uint8))
    fill_slots(plan, views)


@dataclass(slots=True)
class Bench:
    """An engine in this process and all that it said."""

    plan: Plan
    interpreter: Interpreter
    engine: Engine = field(init=False)
    messages: list[Up] = field(default_factory=list)
    at_poll: Callable[[], None] = lambda: None  # replaced by tests
    deliveries: list[int] = field(default_factory=list)
    """How many messages had been said at each."""
    now: float = 0.0
    """Seconds; nothing else moves its clock."""

    def __post_init__(self) -> None:
        self.engine = Engine(
            self.plan,
            self.interpreter,
            self.messages.append,
            lambda: self.at_poll(),
            lambda: self.deliveries.append(len(self.messages)),
            clock=lambda: self.now,
            checked=True,
        )

    def add(
        self,
        request_id: int,
        prompt: list[int],
        max_output: int = 8,
        sampling: Sampling = GREEDY,
        stop: tuple[int, ...] = (),
    ) -> None:
        self.engine.handle(
            Add(
                request_id=request_id,
                token_ids=prompt,
                max_output=max_output,
                sampling=sampling,
                stop_token_ids=list(stop),
            )
        )

    def drain(self, max_steps: int = 5_000) -> None:
        for _ in range(max_steps):
            if self.engine.idle:
                return
            self.engine.step()
        raise AssertionError("somebody waits for ever")

    def step_until(self, condition: Callable[[], object], max_steps: int = 1_000) -> None:
        for _ in range(max_steps):
            if condition():
                return
            self.engine.step()
        raise AssertionError("it never came to that")

    def ask(self, prompt: list[int], max_output: int = 8) -> list[int]:
        """One request alone."""
        request_id = 1_000_000 + len(self.messages)
        self.add(request_id, prompt, max_output)
        self.drain()
        return self.text(request_id)

    def text(self, request_id: int) -> list[int]:
        tokens = [message for message in self.messages if isinstance(message, Tokens)]
        return [token for step in tokens for who, token in step.items if who == request_id]

    def end(self, request_id: int) -> Done:
        (done,) = (
            message
            for message in self.messages
            if isinstance(message, Done) and message.request_id == request_id
        )
        return done

    def logs(self, word: str) -> list[str]:
        lines = [message.line for message in self.messages if isinstance(message, Log)]
        return [line for line in lines if word in line]


Start = Callable[..., Bench]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Products this small gain nothing from a second thread, and lose much to whoever else runs."""
    torch.set_num_threads(1)


def starts() -> Iterator[Start]:
    """`start(profile, *overrides)`: an engine from a plan that went through JSON."""
    running: list[Interpreter] = []

    def make(
        profile: str = "tiny-cpu",
        *overrides: str,
        change: Callable[[Plan], Plan] = lambda plan: plan,
    ) -> Bench:
        loaded = load_profile(str(PROFILES / f"{profile}.yaml"), overrides)
        plan = change(plan_from_json(plan_to_json(compile_profile(loaded.profile, CARDS))))
        interpreter = Interpreter(plan, Arena(plan.spaces, {}))
        running.append(interpreter)
        fill_weights(plan, interpreter.views)
        return Bench(plan, interpreter)

    yield make
    for interpreter in running:
        interpreter.close()


start = pytest.fixture(starts, name="start")
start_for_module = pytest.fixture(starts, scope="module", name="start_for_module")


@pytest.fixture(scope="session")
def prompt() -> Callable[[int, int], list[int]]:
    """`prompt(num_tokens, seed)`"""

    def make(num_tokens: int, seed: int = 0) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return [int(t) for t in torch.randint(0, 4096, (num_tokens,), generator=generator)]

    return make
