"""Runs the largest legal step of each program before anybody waits, so that nothing is loaded or allocated later."""

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.messages import Add, Done, Sampling, Up
from firmtoken.runtime.engine.program import Counters, Interpreter

GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0)


class WarmUpFailed(Exception):
    """A legal request did not end as it must."""


def warm_up(plan: Plan, interpreter: Interpreter) -> None:
    """A span, a hit, an extension, and a decode step of every planned size; counters start from zero afterwards."""
    client = Client(plan, interpreter)
    most = plan.context.effective - 1
    longest = min(plan.schedule.prefill_span, most)
    client.ask(((longest, 1),))
    client.ask(((longest, 1),))  # hits what the first one left
    on_demand = min(plan.schedule.on_demand_below.cold - 1, most)
    if on_demand > 0:
        client.ask(((on_demand, 1),))
    for size in plan.schedule.graph_batch_sizes:
        client.ask(((1, min(2, most)),) * size)
    interpreter.drain()
    interpreter.counters = Counters()


class Client:
    """Asks an engine of its own, whose prefix cache goes with it."""

    def __init__(self, plan: Plan, interpreter: Interpreter) -> None:
        self._engine = Engine(plan, interpreter, self._keep, lambda: None)
        self._num_asked = 0
        self._ends: list[Done] = []

    def ask(self, requests: tuple[tuple[int, int], ...]) -> None:
        """Requests of (prompt tokens, output tokens), together; returns when all have ended."""
        for num_tokens, max_output in requests:
            self._engine.handle(
                Add(
                    request_id=self._num_asked,
                    token_ids=[0] * num_tokens,
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

    def _keep(self, message: Up) -> None:
        if isinstance(message, Done):
            self._ends.append(message)
