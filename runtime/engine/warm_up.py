"""Runs the worst legal step of every program before anybody waits, so that nothing is loaded or allocated later.

Prompts differ in their first token, so that none hits another's prefix unless it is meant to.
"""

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.batches import cut_rows
from firmtoken.runtime.engine.drawn import Read
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.messages import GREEDY, Add, Done, Up
from firmtoken.runtime.engine.program import Counters, Interpreter
from firmtoken.runtime.hinted_fault import HintedFault

STEPS_AHEAD = 4
"""Of all together: one that is launched for its own sake, two ahead of their tokens, one that knows its end."""


class WarmUpFailed(Exception):
    """A legal request did not end as it must."""


class NotFinite(HintedFault):
    """The model computes something that is no number: its weights are not what they should be."""


def warm_up(plan: Plan, interpreter: Interpreter) -> None:
    """Counters start from zero afterwards, and a test's faults count from then on."""
    interpreter.faults.armed = False
    client = Client(plan, interpreter)
    client.ask_spans()
    client.unroll_spans(interpreter)
    client.ask_extensions()
    client.ask_prompts()
    if plan.device.kind == "cuda":
        client.ask_between()
    for size in plan.schedule.graph_batch_sizes:
        client.ask_together(size)
    if captures(plan):
        client.capture_decode()
        client.capture_prompts()
        client.run_ahead()
        client.ask_prompts()
        for size in plan.schedule.graph_batch_sizes:
            client.ask_together(size, then=STEPS_AHEAD)  # of each graph its first replays
    interpreter.drain()
    interpreter.counters = Counters()
    interpreter.faults.armed = True


def captures(plan: Plan) -> bool:
    """Whether decode steps are replayed instead of launched."""
    return plan.device.kind == "cuda" and plan.programs.decode.captured


class CheckedEngine(Engine):
    """Looks at the logits of each run, or of the step that runs ahead of it, which serving does not stop for."""

    def _drawn(self, program: str, tokens: Read) -> list[int]:
        drawn = super()._drawn(program, tokens)
        logits = self._interpreter.views.tensor(Value(f"{program}.logits"))[: len(drawn)]  # [S,V]
        strange = ~torch.isfinite(logits)
        if strange.any():
            raise NotFinite(
                f"the model's logits are not finite after warm-up: "
                f"`{logits[strange][0].item():g}` from program `{program}`",
                "the checkpoint is damaged, or the profile's `model` describes another one",
            )
        return drawn


class Client:
    """Asks an engine of its own, whose prefix cache goes with it."""

    def __init__(self, plan: Plan, interpreter: Interpreter) -> None:
        self._schedule = plan.schedule
        self._page_size = plan.kv_cache.page_size
        self._effective = plan.context.effective
        self._longest = min(plan.schedule.prefill_span, plan.context.effective - 1)
        self._engine = CheckedEngine(plan, interpreter, self._keep, lambda: None)
        self._num_asked = 0
        self._num_prompts = 0
        self._ends: list[Done] = []

    def ask_spans(self) -> None:
        """A whole span of one request, which is parked; its hit, which restores; a whole span of many."""
        whole = self._new_prompt(self._longest)
        self.ask((whole,))
        self.ask((whole,))
        # Many may be longer together than the context lets one be.
        share, rest = divmod(self._schedule.prefill_span, self._schedule.max_num_seqs)
        lengths = [share + (n < rest) for n in range(self._schedule.max_num_seqs)]
        self.ask(tuple(self._new_prompt(min(n, self._longest)) for n in lengths if n))

    def unroll_spans(self, interpreter: Interpreter) -> None:
        """A chunk of as many tiles as it may have, for whatever length comes first."""
        schedule = self._schedule
        for rows in range(schedule.mixer_tile, schedule.moe_chunk + 1, schedule.mixer_tile):
            cut = cut_rows(rows, 1, chunk=schedule.moe_chunk, tile=schedule.mixer_tile)
            interpreter.unrolled("prefill", cut)

    def ask_extensions(self) -> None:
        """The longest that fetch on demand: of a new text, and of one that goes on from a hit."""
        below = self._schedule.on_demand_below
        cold = min(below.cold - 1, self._effective - 1)
        if cold > 0:
            self.ask((self._new_prompt(cold),))
        warm = min(below.warm - 1, self._effective - 1 - self._page_size)
        if warm > 0:
            known = self._new_prompt(self._page_size + 1)
            self.ask((known,))
            self.ask((known[: self._page_size] + [0] * warm,))

    def ask_together(self, size: int, *, then: int = 0) -> None:
        """A decode step of this size, or the largest below it that is legal: the first waits for the last.

        `then`: so many steps more of all together.
        """
        count = min(size, self._schedule.max_num_seqs)
        prompts = tuple(self._new_prompt(1) for _ in range(count))
        # One joins after each step, so the first draws a token at every size up to `count`, and one by its prompt.
        self.ask(prompts, max_output=min(count + 1 + then, self._effective - 1))

    def capture_decode(self) -> None:
        """A graph of the decode program at each planned size; all kernels have run by now."""
        for size in self._schedule.graph_batch_sizes:
            self._engine.capture_decode(size)

    def run_ahead(self) -> None:
        """From now on as serving does: the next step is launched before this one's tokens are read."""
        self._engine.ahead = True

    def ask_prompts(self) -> None:
        """A prompt that fills each captured prefill, alone."""
        for rows in self._schedule.prefill_graph_rows:
            self.ask((self._new_prompt(min(rows, self._longest)),))

    def ask_between(self) -> None:
        """Prompts that no graph is for, of every power of two of rows, the shortest as what is left of a tile.

        Kernels have a form for so many rows each, none for less than twice as many as the one before it.
        """
        graphs = self._schedule.prefill_graph_rows or (0,)
        for rows in (1 << power for power in range(self._longest.bit_length())):
            length = rows + (self._schedule.mixer_tile if rows < graphs[0] else 0)
            if not graphs[0] <= rows <= graphs[-1] and length <= self._longest:
                self.ask((self._new_prompt(length),))

    def capture_prompts(self) -> None:
        """A graph of the prefill program at each planned number of rows."""
        for rows in self._schedule.prefill_graph_rows:
            self._engine.capture_prompt(rows)

    def ask(self, prompts: tuple[list[int], ...], max_output: int = 1) -> None:
        """Returns when all have ended."""
        for prompt in prompts:
            self._engine.handle(
                Add(
                    request_id=self._num_asked,
                    token_ids=prompt,
                    max_output=max_output,
                    sampling=GREEDY,
                    stop_token_ids=[],
                )
            )
            self._num_asked += 1
        while not self._engine.idle:
            self._engine.step()
        wrong = [end for end in self._ends if end.reason != "length"]
        if wrong:
            raise WarmUpFailed(f"a warm-up request ended as {wrong[0].reason}: {wrong[0].message}")
        assert len(self._ends) == self._num_asked

    def _new_prompt(self, num_tokens: int) -> list[int]:
        self._num_prompts += 1
        return [self._num_prompts] + [0] * (num_tokens - 1)

    def _keep(self, message: Up) -> None:
        if isinstance(message, Done):
            self._ends.append(message)
