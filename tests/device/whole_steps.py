"""Decode steps of a whole plan on a real GPU, through the engine without a server. A plain script, no test of CI.

    PYTHONPATH=.src python tests/device/whole_steps.py [--profile NAME] [--set FIELD=VALUE ...] [--variants all]

Random weights at the real geometry, straight into the plan's places; prompts are left out. Prints JSON lines: what
the allocator holds beside the plan's bytes, tokens a second at each planned size with and without graphs, the GPU's own
time of a step at several depths, the same with other constants and whether logits are the same bit for bit, and what
each kernel adds to a step.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from random_weights import fill_random
from step_profile import (
    breakdown,
    captured,
    fill_cache,
    gpu_seconds,
    kept_states,
    same_bits,
    stand_at,
    tuned,
)

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.batches import SPAN, Cut, drawn_tokens
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.messages import Add, Sampling, Tokens
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.work import Decode, Span
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, seed=0),
    "top-p": Sampling(temperature=1.0, top_p=0.95, top_k=0, min_p=0.0, seed=7),
}


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


class WithoutPrompts(Engine):
    """A prompt costs nothing and leaves keys and states as they are: what follows decodes on them."""

    def _run_span(self, span: Span) -> None:
        self.scheduler.complete_span(span, drawn_tokens(span, [1000] * len(span.pieces)))


class Run:
    """An engine whose requests all decode."""

    def __init__(self, plan: Plan, interpreter: Interpreter) -> None:
        self.tokens: list[int] = []
        self._engine = WithoutPrompts(plan, interpreter, self._keep, lambda: None)
        self._asked = 0

    def start(self, count: int, sampling: Sampling, output: int) -> None:
        for number in range(count):
            self._engine.handle(
                Add(
                    request_id=self._asked,
                    token_ids=[100 + number],
                    max_output=output,
                    sampling=sampling,
                    stop_token_ids=[],
                )
            )
            self._asked += 1

    def end(self) -> None:
        while not self._engine.idle:
            self._engine.step()

    def step(self) -> None:
        self._engine.step()

    def _keep(self, message: object) -> None:
        if isinstance(message, Tokens):
            self.tokens += [token for _, token in message.items]


def measure(run: Run, count: int, sampling: Sampling, steps: int = 60) -> list[float]:
    """Seconds of each step with `count` streams; the first steps are not among them."""
    run.start(count, sampling, steps + 20 + count)
    for _ in range(count + 5):
        run.step()
    taken = []
    for _ in range(steps):
        begun = time.perf_counter()
        run.step()
        taken.append(time.perf_counter() - begun)
    run.end()
    return taken


DEPTHS = (200, 8000, 32000)
VARIANTS: dict[str, dict[str, dict[str, int]]] = {
    "one after the other": {"*": {"early": 0}},
    "attention 64 x 3": {"attention": {"block": 64, "stages": 3}},
    "attention, runs of 1": {"attention": {"least": 1}},
    "tiles from 4 rows": {"linear": {"few": 3}},
    "linear 4 x 4": {"linear": {"outputs": 4}},
    "gate_up 4 outputs": {"moe_gate_up": {"outputs": 4}},
    "down 2 outputs": {"moe_down": {"outputs": 2}},
    "route 2": {"route": {"experts_at_once": 2}},
    "combine 512": {"combine": {"columns": 512}},
}
"""Constants of decode kernels to try in whole steps: op (`*`: every one that has it), constant, number."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="h200-qwen")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--variants", default="all", help="`all`, `none`, or one of them")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    plan = compile_profile(load_profile(arguments.profile, arguments.set).profile, CARDS)
    say(
        case="plan",
        placement=plan.experts.placement,
        context=plan.context.effective,
        s=round(time.perf_counter() - begun, 2),
    )
    torch.cuda.init()
    before = torch.cuda.mem_get_info()[0]
    arena = Arena(plan.spaces, {}, "cuda")
    planned = sum(space.bytes for space in plan.spaces if space.memory == "device")
    say(
        case="arena",
        planned=planned,
        allocated=torch.cuda.memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
        driver=before - torch.cuda.mem_get_info()[0],
    )
    interpreter = Interpreter(plan, arena)
    fill_random(plan, interpreter.views)
    fill_cache(plan, interpreter)
    torch.cuda.synchronize()
    say(
        case="filled",
        s=round(time.perf_counter() - begun, 2),
        reserved=torch.cuda.memory_reserved(),
    )
    torch.cuda.empty_cache()
    run = Run(plan, interpreter)
    for size in plan.schedule.graph_batch_sizes:
        run.start(size, SAMPLINGS["greedy"], size + 3)
        run.end()
    say(
        case="first steps",
        s=round(time.perf_counter() - begun, 2),
        tokens=run.tokens[:40],
        allocated=torch.cuda.memory_allocated(),
    )
    eager = {}
    for size in (1, 4):
        taken = measure(run, size, SAMPLINGS["greedy"], 20)
        eager[size] = statistics.median(taken)
    say(case="eager", ms={size: round(1e3 * s, 3) for size, s in eager.items()})
    free = torch.cuda.mem_get_info()[0]
    for size in plan.schedule.graph_batch_sizes:
        batch = run._engine._batches.decode(Decode(sequences=(), size=size))
        cut = Cut(chunks=((size,),), num_seqs=size)
        interpreter.capture("decode", cut, {SPAN: batch, ("tokens", 0): batch})
    say(
        case="captured",
        s=round(time.perf_counter() - begun, 2),
        bytes=free - torch.cuda.mem_get_info()[0],
    )
    for name, sampling in SAMPLINGS.items():
        for size in plan.schedule.graph_batch_sizes:
            taken = measure(run, size, sampling)
            cut = Cut(chunks=((size,),), num_seqs=size)
            graph = interpreter._graphs._captured["decode", cut]
            gpu = gpu_seconds(graph.replay)
            wall = statistics.median(taken)
            say(
                case="decode",
                sampling=name,
                size=size,
                wall_ms=round(1e3 * wall, 3),
                gpu_ms=round(1e3 * gpu, 3),
                tokens_per_s=round(size / wall, 1),
            )
    look_closer(Closer(plan, arena, interpreter, run._engine._batches), arguments)
    say(
        case="end",
        s=round(time.perf_counter() - begun, 2),
        driver=before - torch.cuda.mem_get_info()[0],
        allocated=torch.cuda.memory_allocated(),
        reserved=torch.cuda.memory_reserved(),
    )


Graphs = dict[int, Callable[[], None]]
"""Replay of a decode step for each number of streams."""


class Closer:
    """Depth, races, other constants and a step's parts, of a plan whose places are filled."""

    def __init__(
        self, plan: Plan, arena: Arena, interpreter: Interpreter, batches: DeviceBatches
    ) -> None:
        self._plan, self._arena, self._interpreter = plan, arena, interpreter
        self._batches = batches
        self._sizes = (1, plan.schedule.graph_batch_sizes[-1])
        self._own = self._graphs(interpreter)
        self._restore = kept_states(plan, interpreter)

    def say_depths(self) -> None:
        """The GPU's own time of a step."""
        for name, sampling in SAMPLINGS.items():
            depths = DEPTHS if name == "greedy" else DEPTHS[:1]
            say(case="depth", sampling=name, us=self._times(self._own, sampling, depths))

    def say_variant(self, name: str, other: Plan) -> None:
        """Time and logits with other constants, beside the plan's own."""
        begun = time.perf_counter()
        graphs = self._graphs(Interpreter(other, self._arena))
        depths = DEPTHS[::2] if "attention" in name else DEPTHS[:1]
        us, own = (self._times(some, SAMPLINGS["greedy"], depths) for some in (graphs, self._own))
        say(case="variant", name=name, us=us, own=own, s=round(time.perf_counter() - begun, 1))
        for size in self._sizes:
            stand_at(self._plan, self._batches, size, DEPTHS[0], SAMPLINGS["greedy"])
            pair = (graphs[size], self._own[size])
            turns = 20 if "*" in VARIANTS[name] else 1
            found = same_bits(self._interpreter, pair, size, self._restore, turns)
            say(case="same bits", name=name, size=size, **found)

    def say_parts(self) -> None:
        """Kernels of a step by what each adds to it."""
        for size, depth in ((1, DEPTHS[0]), (self._sizes[1], DEPTHS[0]), (1, DEPTHS[-1])):
            stand_at(self._plan, self._batches, size, depth, SAMPLINGS["greedy"])
            for line in breakdown(self._own[size]):
                say(size=size, depth=depth, **line)

    def _graphs(self, interpreter: Interpreter) -> Graphs:
        return {size: captured(interpreter, self._batches, size) for size in self._sizes}

    def _times(
        self, graphs: Graphs, sampling: Sampling, depths: tuple[int, ...]
    ) -> dict[str, float]:
        found = {}
        for size, replay in graphs.items():
            for depth in depths:
                stand_at(self._plan, self._batches, size, depth, sampling)
                found[f"{size} at {depth}"] = round(1e6 * gpu_seconds(replay), 1)
        return found


def look_closer(closer: Closer, arguments: argparse.Namespace) -> None:
    """Each on its own, so that one may fail."""
    closer.say_depths()
    for name, changes in VARIANTS.items():
        if arguments.variants in ("all", name):
            try:
                profile = load_profile(arguments.profile, arguments.set).profile
                closer.say_variant(name, compile_profile(profile, tuned(CARDS, changes)))
            except Exception as error:  # the next one may still tell something
                say(case="failed", name=name, error=repr(error)[:500])
    closer.say_parts()


if __name__ == "__main__":
    main()
