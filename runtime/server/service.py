"""What every route shares: one engine, one model's text, one plan, and how a request enters."""

import logging
from collections.abc import Callable, Sequence

from firmtoken.runtime.dialects.turn import Turn
from firmtoken.runtime.engine.messages import Add, Sampling
from firmtoken.runtime.server.admission import Budget, admit, check_queue
from firmtoken.runtime.server.answer import Answer, Order
from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.errors import InvalidBody, ModelNotFound
from firmtoken.runtime.server.generation import Generation
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.serving import ServingPlan
from firmtoken.runtime.server.wire import SamplingFields

MAX_WARNED_NAMES = 1000


class Service:
    """One server; used from one event loop."""

    def __init__(
        self,
        *,
        plan: ServingPlan,
        plan_json: bytes,
        model: ServedModel,
        engine: EngineClient,
        log: logging.Logger,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        draw_seed: Callable[[], int],
        keep_alive_s: float,
    ) -> None:
        self.plan = plan
        self.plan_json = plan_json
        self.model = model
        self.engine = engine
        self.keep_alive_s = keep_alive_s
        self.started_at = int(wall_clock())
        self.log = log
        self._clock = clock
        self._wall_clock = wall_clock
        self._draw_seed = draw_seed
        self._warned: set[str] = set()

    def now(self) -> int:
        """Seconds since the epoch, for `created`."""
        return int(self._wall_clock())

    def check_model(self, name: str | None) -> None:
        """Raise `ModelNotFound` for a name that is not the served model's; no name means the served one."""
        if name is not None and name != self.plan.model:
            raise ModelNotFound(
                f"The model `{name}` does not exist here, this server serves `{self.plan.model}`",
                param="model",
            )

    def warn_ignored(self, names: Sequence[str]) -> None:
        """Log each unknown field once."""
        for name in names:
            if name not in self._warned and len(self._warned) < MAX_WARNED_NAMES:
                self._warned.add(name)
                self.log.warning("unknown field %r is ignored", name[:64])

    def order(
        self, fields: SamplingFields, prompt: Sequence[int], *, stops: Sequence[str], param: str
    ) -> Order:
        """The request with every default filled in: the model's own, then the request's (D19)."""
        if not prompt:  # the engine has nothing to begin from
            raise InvalidBody(f"`{param}`: empty", param=param, code="invalid_value")
        defaults = self.model.defaults
        top_k = defaults.top_k if fields.top_k is None else max(0, fields.top_k)
        asked = fields.max_completion_tokens
        return Order(
            prompt=tuple(prompt),
            asked_output=fields.max_tokens if asked is None else asked,
            sampling=Sampling(
                temperature=_or(fields.temperature, defaults.temperature),
                top_p=_or(fields.top_p, defaults.top_p),
                top_k=top_k,
                min_p=_or(fields.min_p, defaults.min_p),
                # The sampler's key is unsigned; a client's -1 is a seed like any other.
                seed=self._draw_seed() if fields.seed is None else fields.seed % 2**63,
            ),
            stop_token_ids=tuple(
                dict.fromkeys(
                    (
                        *(() if fields.ignore_eos else defaults.stop_token_ids),
                        *(fields.stop_token_ids or ()),
                    )
                )
            ),
            stop_strings=tuple(stops),
            keep_stop=bool(fields.include_stop_str_in_output),
            param=param,
        )

    def begin(
        self, name: str, orders: Sequence[Order], *, turn: Callable[[], Turn] | None
    ) -> Generation:
        """Admit all `orders` or none, and hand them to the engine; an `ApiError` says why not."""
        self.engine.require_ready()
        budgets = [
            admit(len(order.prompt), order.asked_output, self.plan, param=order.param)
            for order in orders
        ]
        for order, budget in zip(orders, budgets, strict=True):
            self._log_received(name, order, budget)
        check_queue(
            new=len(orders),
            waiting=self.engine.held.num_waiting,
            running=self.engine.held.num_running,
            new_tokens=sum(len(order.prompt) for order in orders),
            waiting_tokens=self.engine.held.waiting_prompt_tokens,
            plan=self.plan,
        )
        return self._submit(name, orders, budgets, turn)

    def _submit(
        self,
        name: str,
        orders: Sequence[Order],
        budgets: Sequence[Budget],
        turn: Callable[[], Turn] | None,
    ) -> Generation:
        session = self.engine.open_session()
        answers: dict[int, Answer] = {}
        for index, (order, budget) in enumerate(zip(orders, budgets, strict=True)):
            request_id = self.engine.take_id()
            answers[request_id] = Answer(
                index, order, self.model.tokenizer, None if turn is None else turn()
            )
            session.submit(
                Add(
                    request_id=request_id,
                    token_ids=list(order.prompt),
                    max_output=budget.max_output,
                    sampling=order.sampling,
                    stop_token_ids=list(order.stop_token_ids),
                )
            )
            if self._must_wait(budget):
                self.log.info(
                    "%s queued: %d run, %d wait",
                    name,
                    self.engine.held.num_running,
                    self.engine.held.num_waiting,
                )
        return Generation(name, session, answers, log=self.log, clock=self._clock)

    def _must_wait(self, budget: Budget) -> bool:
        engine = self.engine
        in_engine = engine.held.num_running + engine.held.num_waiting
        return in_engine > self.plan.max_num_seqs or budget.pages > self._pages_free()

    def _pages_free(self) -> int:
        """Pages that are free or would be evicted, as last heard; before that, all."""
        stats = self.engine.stats
        return self.plan.pages if stats is None else stats.pages_free + stats.pages_cached

    def _log_received(self, name: str, order: Order, budget: Budget) -> None:
        self.log.info(
            "%s received: %d prompt tokens, output budget %d, %d pages needed, %d free, seed %d",
            name,
            len(order.prompt),
            budget.max_output,
            budget.pages,
            self._pages_free(),
            order.sampling.seed,
        )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
