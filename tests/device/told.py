"""`Told`: an engine that draws what it is told to, and keeps the logits that it would have drawn from.

Two runs are comparable position by position only if they go on with the same tokens, whatever each would have chosen.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.holdings import Park
from firmtoken.runtime.engine.limits import Limits, limits_of
from firmtoken.runtime.engine.loading import checkpoint_folder, load_weights
from firmtoken.runtime.engine.messages import GREEDY, Add, Admitted, Done, Sampling
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.scheduler import Drawn, Scheduler
from firmtoken.runtime.engine.work import Decode, Span
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.weights.preflight import preflight


def start(plan: Plan) -> Interpreter:
    """An interpreter with the plan's weights in place; nothing has run."""
    interpreter = Interpreter(plan, Arena(plan.spaces, {}, plan.device.kind))
    load_weights(plan, interpreter, preflight(plan, checkpoint_folder(plan)), lambda *_: None)
    return interpreter


@dataclass(slots=True)
class Answer:
    """What came of one request."""

    told: tuple[int, ...]
    """What it draws, first to last; after that, and if empty, what it would."""
    tokens: list[int] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    """fp32 [V] of each token."""
    cached_tokens: int = 0


class Teller(Scheduler):
    """Takes over other tokens than were drawn."""

    def __init__(self, limits: Limits, park: Park, logits: Callable[[str], torch.Tensor]) -> None:
        super().__init__(limits, park)
        self.answers: dict[int, Answer] = {}
        self._logits = logits

    def complete_span(self, span: Span, drawn: Drawn) -> None:
        rows = {piece.sequence.request_id: row for row, piece in enumerate(span.pieces)}
        super().complete_span(span, self._instead(span.program, rows, drawn))

    def complete_decode(self, decode: Decode, drawn: Drawn) -> None:
        rows = {sequence.request_id: row for row, sequence in enumerate(decode.sequences)}
        super().complete_decode(decode, self._instead("decode", rows, drawn))

    def _instead(self, program: str, rows: Mapping[int, int], drawn: Drawn) -> Drawn:
        logits = self._logits(program)
        instead = {}
        for request_id, token in drawn.items():
            answer = self.answers[request_id]
            answer.logits.append(logits[rows[request_id]].cpu().clone())
            told = answer.told[len(answer.tokens) : len(answer.tokens) + 1]
            answer.tokens.append(told[0] if told else token)
            instead[request_id] = answer.tokens[-1]
        return instead


class Told(Engine):
    """Requests that come together are scheduled together. Never runs ahead: logits are looked at in between."""

    def __init__(self, plan: Plan, interpreter: Interpreter) -> None:
        super().__init__(plan, interpreter, self._keep, lambda: None)
        self.scheduler: Teller = Teller(
            limits_of(plan),
            self._park,
            lambda program: interpreter.views.tensor(Value(f"{program}.logits")),
        )
        self._numbers = itertools.count()

    def ask(
        self,
        *prompts: Sequence[int],
        told: Sequence[Sequence[int]] = (),
        output: int = 0,
        sampling: Sampling = GREEDY,
        named: Callable[[int, int], None] = lambda _number, _request_id: None,
    ) -> list[Answer]:
        """In the order of the prompts, when all have ended: `output` tokens each, or one more than they are told.

        `named` hears which request a prompt's number has become.
        """
        answers = []
        for number, prompt in enumerate(prompts):
            request_id = next(self._numbers)
            named(number, request_id)
            answer = Answer(tuple(told[number]) if told else ())
            self.scheduler.answers[request_id] = answer
            answers.append(answer)
            self.handle(
                Add(
                    request_id=request_id,
                    token_ids=list(prompt),
                    max_output=output or len(answer.told) + 1,
                    sampling=sampling,
                    stop_token_ids=[],
                )
            )
        while not self.idle:
            self.step()
        return answers

    def _keep(self, message: object) -> None:
        if isinstance(message, Admitted):
            self.scheduler.answers[message.request_id].cached_tokens = message.cached_tokens
        if isinstance(message, Done) and message.reason != "length":
            raise AssertionError(f"a request ended as {message.reason}: {message.message}")
