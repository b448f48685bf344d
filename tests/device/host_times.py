"""Where the host's time goes between decode steps and before a first token, on a real GPU. A plain script.

    PYTHONPATH=.src:tests/device python tests/device/host_times.py [--profile NAME] [--set FIELD=VALUE ...]

Random weights at the real geometry, the engine in this process, as `prompts.py`. Prints JSON lines: decode steps at one
and more streams, each launched when the one before was read and each launched ahead, with the host's microseconds in
each part of a step; parts of long prompts of new and of known lengths, and a profile of one; a short prompt after
idle times.
"""

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from io import StringIO
from itertools import pairwise

import torch
from prompts import SAMPLING, Asking, say
from random_weights import fill_random

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.engine.messages import Add
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.warm_up import captures, warm_up
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

LENGTHS = (6008, 6008, 6003, 6003, 5999, 4500, 4501, 3008, 3008, 3005, 108, 108, 1508, 1508)


class Parts:
    """Host seconds of functions, by name; what one calls of another counts for both."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = defaultdict(list)

    def watch(self, owner: object, name: str) -> None:
        plain: Callable[..., object] = getattr(owner, name)

        def watched(*arguments: object, **named: object) -> object:
            begun = time.perf_counter()
            try:
                return plain(*arguments, **named)
            finally:
                self.spent[name].append(time.perf_counter() - begun)

        setattr(owner, name, watched)

    def take(self, steps: int = 1) -> dict[str, float]:
        """Microseconds a step, and forgets them."""
        found = {name: round(1e6 * sum(times) / steps, 1) for name, times in self.spent.items()}
        self.spent.clear()
        return found


def decode_steps(asking: Asking, parts: Parts, streams: int, output: int = 320) -> None:
    asked = [asking.fresh(20) for _ in range(streams)]
    first: list[list[int]] = []
    for ahead in (False, True, False, True):
        asking.engine.ahead = ahead
        parts.take()
        counters = asking.engine._interpreter.counters
        counters.timed_steps, counters.timed_s = 0, 0.0
        ids = asking.ask(*asked, output=output)
        first = first or [asking.tokens[one] for one in ids]
        times = [asking.times[one] for one in ids]
        begin, end = max(one[10] for one in times), min(one[-5] for one in times)
        steps = [at for at in times[0] if begin <= at <= end]
        gaps = sorted(1e3 * (b - a) for a, b in pairwise(steps))
        say(
            case="steps",
            streams=streams,
            ahead=ahead,
            ms=round((steps[-1] - steps[0]) * 1e3 / (len(steps) - 1), 4),
            median=round(statistics.median(gaps), 4),
            timed_steps=counters.timed_steps,
            timed_ms=round(1e3 * counters.timed_s / max(1, counters.timed_steps), 4),
            longest=[round(gap, 3) for gap in gaps[-4:]],
            same=[asking.tokens[one] for one in ids] == first,
            host_us=parts.take(output),
        )
    stopped(asking, asked, first)


def stopped(asking: Asking, asked: list[list[int]], first: list[list[int]]) -> None:
    """Each ends where its text has the token that is its 100th for the first time; then all of it once more."""
    asking.engine.ahead = True
    for number, (prompt, text) in enumerate(zip(asked, first, strict=True)):
        asking.engine.handle(
            Add(
                request_id=-1 - number,
                token_ids=prompt,
                max_output=len(text),
                sampling=SAMPLING,
                stop_token_ids=[text[100]],
            )
        )
        asking.tokens[-1 - number].clear()
    while not asking.engine.idle:
        asking.engine.step()
    found = [asking.tokens[-1 - number] for number in range(len(asked))]
    wanted = [text[: text.index(text[100]) + 1] for text in first]
    again = asking.ask(*asked, output=len(first[0]))
    same = [asking.tokens[one] for one in again] == first
    until = min(map(len, wanted))  # then the batch is smaller, and numbers are rounded otherwise
    right = [one[:until] for one in found] == [one[:until] for one in wanted]
    say(
        case="stopped", right=right, ends=[*map(len, found)], wanted=[*map(len, wanted)], again=same
    )


def device_step(asking: Asking, streams: int) -> None:
    """A replay's own time, by events around many."""
    cut = next(
        cut
        for name, cut in asking.engine._interpreter._graphs._captured
        if name == "decode" and cut.num_seqs == streams
    )
    replay = asking.engine._interpreter._graphs._captured["decode", cut].replay
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    launches = []
    begun.record()
    for _ in range(50):
        before = time.perf_counter()
        replay()
        launches.append(time.perf_counter() - before)
    ended.record()
    ended.synchronize()
    say(
        case="replays",
        streams=streams,
        ms=round(begun.elapsed_time(ended) / 50, 4),
        launch_us=[round(1e6 * one, 1) for one in (launches[0], statistics.median(launches))],
    )


def prompts(asking: Asking, parts: Parts) -> None:
    for length in LENGTHS:
        parts.take()
        begun = time.perf_counter()
        [one] = asking.ask(asking.fresh(length))
        whole = time.perf_counter() - begun
        say(
            case="prompt",
            prompt=length,
            first_token_ms=round(1e3 * asking.times[one][0], 2),
            whole_ms=round(1e3 * whole, 2),
            host_us=parts.take(),
        )


def walked(asking: Asking) -> None:
    """Which Python functions the host spends a prompt of two tiles in."""
    profile = cProfile.Profile()
    profile.enable()
    asking.ask(asking.fresh(3007))
    profile.disable()
    text = StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(40)
    for line in text.getvalue().splitlines():
        if line.strip():
            print(line[:150], flush=True)


def after_idle(asking: Asking) -> None:
    for idle_s in (0, 0, 0.1, 2, 0, 10, 0):
        time.sleep(idle_s)
        [one] = asking.ask(asking.fresh(108), output=30)
        times = [1e3 * at for at in asking.times[one]]
        steps = [round(b - a, 3) for a, b in pairwise(times)]
        say(
            case="after idle",
            idle_s=idle_s,
            first_token_ms=round(times[0], 2),
            steps=[*steps[:4], round(statistics.median(steps), 3)],
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="tests/device/h200-synthetic.yaml")
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    begun = time.perf_counter()
    plan = compile_profile(load_profile(arguments.profile, arguments.set).profile, CARDS)
    interpreter = Interpreter(plan, Arena(plan.spaces, {}, plan.device.kind), timed=True)
    fill_random(plan, interpreter.views)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    warm_up(plan, interpreter)
    gc.collect()
    gc.freeze()
    say(case="ready", s=round(time.perf_counter() - begun, 2), captures=captures(plan))
    asking = Asking(plan, interpreter)
    parts = Parts()
    engine = asking.engine
    for owner, names in (
        (engine, ("step", "_launch", "_launch_next", "_drawn", "_flush", "_park")),
        (engine._batches, ("decode", "span")),
        (engine.scheduler, ("schedule", "following", "complete_decode", "complete_span")),
        (interpreter, ("run", "bind", "_bind", "_walk", "_replayed", "bring", "settle")),
    ):
        for name in names:
            parts.watch(owner, name)
    for part in (
        lambda: after_idle(asking),
        lambda: prompts(asking, parts),
        lambda: decode_steps(asking, parts, 1),
        lambda: decode_steps(asking, parts, 4),
        lambda: device_step(asking, 1),
        lambda: device_step(asking, 4),
        lambda: walked(asking),
    ):
        try:
            part()
        except Exception as error:  # one part that fails leaves the others
            say(case="failed", error=repr(error))
    print(json.dumps({"case": "end", "s": round(time.perf_counter() - begun, 2)}))


if __name__ == "__main__":
    main()
