"""A GPU's kernels are compiled while weights are read: both take a fresh machine's time, neither needs the other."""

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType

import torch

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.check_rows import Case, cases, device_batches, span_case
from firmtoken.runtime.engine.launches import Launch
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.weights.reading import Progress

COMPILE_ONLY = "firmtoken.runtime.kernels.compile_only"
"""Imported when it is needed: a CPU's engine has no Triton."""
TELL_EVERY_S = 10.0


def all_cases(plan: Plan) -> Iterator[Case]:
    """What the self-check launches, and prompts of every power of two of rows up to the longest.

    Warm-up and clients ask for such. Kernels have a form for so many rows each, none for less than twice as many as the
    one before it.
    """
    yield from cases(plan)
    longest = min(plan.schedule.prefill_span, plan.context.effective - 1)
    for power in range(longest.bit_length()):
        yield span_case(plan, 1 << power, 1)
    yield span_case(plan, longest, 1)


class CompileAhead:
    """Begun at once, by threads of its own; a context, so that it ends with the load."""

    def __init__(self, plan: Plan, interpreter: Interpreter, threads: int) -> None:
        self._plan = plan
        self._interpreter = interpreter
        self._threads = threads
        self._pool = ThreadPoolExecutor(1)
        self._compiled = self._pool.submit(self._compile)

    def __enter__(self) -> "CompileAhead":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=error is None)

    def finish(self, progress: Progress) -> None:
        """Returns when all are compiled, or taken from Triton's cache; raises what a compiler raised."""
        if not self._compiled.done():
            progress("kernels", 0, 0)
        while not wait((self._compiled,), TELL_EVERY_S).done:
            progress("kernels", 0, 0)
        self._compiled.result()

    def _compile(self) -> None:
        compiled = {card.entry for card in CARDS if card.builds}
        if not any(row.entry in compiled for row in self._plan.kernels):
            return
        builder = self._interpreter.batch_builder()
        compile_only = importlib.import_module(COMPILE_ONLY).compile_only
        with compile_only(self._threads), torch.inference_mode():
            for case in all_cases(self._plan):
                batches = device_batches(case, builder)
                # Of a step the last launch: those of other layers and tiles are alike.
                steps: dict[int, Launch] = {}
                for item in self._interpreter.bind(case.program, case.cut):
                    if isinstance(item, Launch) and item.choice.entry in compiled:
                        steps[id(item.step.step)] = item
                for launch in steps.values():
                    launch.kernel(batches[launch.key])
