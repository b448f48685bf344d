"""The embedded model through the real pipeline: engines in this process, and `ft run` in one of its own."""

import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runtime.started import Started

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_from_json, plan_to_json
from firmtoken.compiler.program import Value
from firmtoken.compiler.verify import verify
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.loading import inventory_of, load_weights
from firmtoken.runtime.engine.messages import Add, Admitted, Done, Log, Sampling, Tokens, Up
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

ROOT = Path(__file__).resolve().parents[3]
PROFILES = ROOT / "profiles"
FOLDER = PROFILES / "weights" / "tiny-moe"
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


@dataclass(slots=True)
class Running:
    """An engine and all that it said."""

    plan: Plan
    interpreter: Interpreter
    engine: Engine = field(init=False)
    messages: list[Up] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Engine(
            self.plan, self.interpreter, self.messages.append, lambda: None, checked=True
        )

    def add(
        self,
        request_id: int,
        prompt: list[int],
        output: int,
        *,
        sampling: Sampling = GREEDY,
        stop: tuple[int, ...] = (),
    ) -> None:
        self.engine.handle(
            Add(
                request_id=request_id,
                token_ids=prompt,
                max_output=output,
                sampling=sampling,
                stop_token_ids=list(stop),
            )
        )

    def drain(self) -> None:
        for _ in range(100_000):
            if self.engine.idle:
                return
            self.engine.step()
        raise AssertionError("somebody waits for ever")

    def ask(self, prompt: list[int], output: int, *, stop: tuple[int, ...] = ()) -> list[int]:
        """One request alone, greedy."""
        request_id = 1_000_000 + len(self.messages)
        self.add(request_id, prompt, output, stop=stop)
        self.drain()
        return self.text(request_id)

    def text(self, request_id: int) -> list[int]:
        tokens = [message for message in self.messages if isinstance(message, Tokens)]
        return [token for step in tokens for who, token in step.items if who == request_id]

    def texts(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for message in self.messages:
            if isinstance(message, Tokens):
                for who, token in message.items:
                    found.setdefault(who, []).append(token)
        return found

    def ends(self) -> dict[int, Done]:
        return {m.request_id: m for m in self.messages if isinstance(m, Done)}

    def admissions(self) -> list[Admitted]:
        return [message for message in self.messages if isinstance(message, Admitted)]

    def logs(self, word: str) -> list[str]:
        lines = [message.line for message in self.messages if isinstance(message, Log)]
        return [line for line in lines if word in line]

    def logits_of(self, program: str) -> torch.Tensor:
        """[V] of the first sequence of that program's last run."""
        return self.interpreter.views.tensor(Value(f"{program}.logits"))[0].clone()

    def logits_alone(self, request_id: int, prompt: list[int], output: int) -> torch.Tensor:
        """[N,V] after the prompt and after each token but the last of a greedy request that nobody shares a step with.

        It prefills in one step, as a prompt of no more than a span does.
        """
        self.messages.clear()
        self.add(request_id, prompt, output)
        self.engine.step()
        found = [self.logits_of("extend" if self.logs("extend") else "prefill")]
        while not self.engine.idle:
            self.engine.step()
            found.append(self.logits_of("decode"))
        assert len(found) == len(self.text(request_id)) == output
        return torch.stack(found)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Products this small gain nothing from a second thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Running]]:
    """`start(profile, *overrides)`: an engine from a saved plan, with the embedded weights."""
    running: list[Interpreter] = []

    def make(
        profile: str = "tiny-cpu",
        *overrides: str,
        change: Callable[[Plan], Plan] = lambda plan: plan,
    ) -> Running:
        loaded = load_profile(str(PROFILES / f"{profile}.yaml"), overrides)
        plan = plan_from_json(plan_to_json(compile_profile(loaded.profile, CARDS)))
        plan = change(plan)
        verify(plan)
        interpreter = Interpreter(plan, Arena(plan.spaces, {}))
        running.append(interpreter)
        load_weights(plan, interpreter, inventory_of(plan), lambda *_: None)
        return Running(plan, interpreter)

    yield make
    for interpreter in running:
        interpreter.close()


@pytest.fixture(scope="session")
def plain_loop() -> Any:  # a class loaded from a file that is no package
    """The embedded model as plain torch, equal to transformers (`test_plain_loop.py`)."""
    path = Path(__file__).parents[1] / "plain_loop.py"
    return runpy.run_path(str(path))["PlainLoop"](FOLDER)


@pytest.fixture(scope="session")
def reference(plain_loop: Any) -> Any:
    """transformers' Qwen3_5MoeForCausalLM in fp32 on the dequantised weights."""
    path = Path(__file__).parents[1] / "test_plain_loop.py"
    return runpy.run_path(str(path))["transformers_model"](plain_loop.weights)


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    """`with serve("tiny-cpu", "serving.context=8209") as address:`"""

    @contextmanager
    def run(profile: str, *overrides: str) -> Iterator[str]:
        command = [sys.executable, "-P", "-m", "firmtoken.runtime.cli.run", "run"]
        command += [str(PROFILES / f"{profile}.yaml"), "--port", "0"]
        for override in overrides:
            command += ["--set", override]
        environ = {
            "PYTHONPATH": str(ROOT / ".src"),
            "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"],
        }
        process = Started(command, environ=environ)
        try:
            yield process.ready(within_s=120)
            process.signal(signal.SIGTERM)
            assert process.exit_code(30) == 0
        finally:
            process.close()

    return run
