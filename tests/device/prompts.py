"""Prompts and decode steps of a whole plan on a real GPU, through the engine without a server. A plain script.

    PYTHONPATH=.src python tests/device/prompts.py [--profile NAME] [--set FIELD=VALUE ...] [--kernels]

Random weights at the real geometry. Prints JSON lines: seconds of each part of the start, what the process holds on the
device by the driver's word, time to first token by prompt length (median of 5, fresh prompts), of a second turn, decode
speed at one and more streams, short and deep. `--kernels`: where a prompt's time goes, by Triton function.
"""

import argparse
import json
import os
import random
import statistics
import time
from collections import defaultdict

import torch
from random_weights import fill_random

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.engine import Engine
from firmtoken.runtime.engine.messages import Add, Sampling, Tokens
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.warm_up import captures, warm_up
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.memory.gpus import find_gpus
from firmtoken.schema.load import load_profile

SAMPLING = Sampling(temperature=1.0, top_p=0.95, top_k=0, min_p=0.0, seed=7)


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def held_bytes() -> int:
    """Of this process on device 0, by NVML; of all, where the driver does not tell them apart."""
    gpu = find_gpus()[0]
    own = next((holder.bytes for holder in gpu.holders if holder.pid == os.getpid()), 0)
    return own or gpu.total - gpu.free


class Asking:
    """An engine and the times of its tokens."""

    def __init__(self, plan: Plan, interpreter: Interpreter) -> None:
        self.times: dict[int, list[float]] = defaultdict(list)
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.engine = Engine(plan, interpreter, self._keep, lambda: None, ahead=captures(plan))
        self._vocabulary = int(plan.model.geometry["vocab_size"])
        self._random = random.Random(5)
        self._asked = 0

    def fresh(self, length: int) -> list[int]:
        return [self._random.randrange(self._vocabulary) for _ in range(length)]

    def ask(self, *prompts: list[int], output: int = 1) -> list[int]:
        """Request ids, once all have ended."""
        ids = []
        begun = time.perf_counter()
        for prompt in prompts:
            self.engine.handle(
                Add(
                    request_id=self._asked,
                    token_ids=prompt,
                    max_output=output,
                    sampling=SAMPLING,
                    stop_token_ids=[],
                )
            )
            ids.append(self._asked)
            self._asked += 1
        self._begun = begun
        while not self.engine.idle:
            self.engine.step()
        return ids

    def _keep(self, message: object) -> None:
        if isinstance(message, Tokens):
            now = time.perf_counter() - self._begun
            for request_id, token in message.items:
                self.times[request_id].append(now)
                self.tokens[request_id].append(token)


def first_token(asking: Asking, length: int, count: int = 5) -> list[float]:
    """Milliseconds, fresh prompts."""
    return [
        round(1e3 * asking.times[asking.ask(asking.fresh(length))[0]][0], 2) for _ in range(count)
    ]


def decode_rate(asking: Asking, streams: int, length: int, output: int = 100) -> float:
    """Tokens a second of all streams together, between the 20th token of each and the last."""
    ids = asking.ask(*(asking.fresh(length) for _ in range(streams)), output=output)
    begin = max(asking.times[one][20] for one in ids)
    end = min(asking.times[one][-1] for one in ids)
    count = sum(sum(begin < at <= end for at in asking.times[one]) for one in ids)
    return round(count / (end - begin), 1)


def by_function(asking: Asking, length: int) -> None:
    """GPU microseconds of one prompt, by Triton function."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        asking.ask(asking.fresh(length))
    rows = [(e.key, e.count, e.self_device_time_total) for e in found.key_averages()]
    for name, count, us in sorted(rows, key=lambda row: -row[2])[:22]:
        say(case="kernel", prompt=length, name=name[:50], launches=count, ms=round(us / 1e3, 3))
    say(case="kernels", prompt=length, ms=round(sum(row[2] for row in rows) / 1e3, 2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="h200-qwen")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--kernels", action="store_true")
    arguments = parser.parse_args()
    begun = time.perf_counter()

    def since() -> float:
        return round(time.perf_counter() - begun, 2)

    plan = compile_profile(load_profile(arguments.profile, arguments.set).profile, CARDS)
    say(case="plan", placement=plan.experts.placement, total=plan.memory.device.total, s=since())
    interpreter = Interpreter(plan, Arena(plan.spaces, {}, "cuda"))
    say(case="arena", s=since(), held=held_bytes())
    fill_random(plan, interpreter.views)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    say(case="filled", s=since())
    warm_up(plan, interpreter)
    say(case="ready", s=since(), held=held_bytes(), planned=plan.memory.device.total)
    asking = Asking(plan, interpreter)
    for length in (1, 30, 108, 500, 513, 1508, 2047, 6008):
        say(case="first token", prompt=length, ms=first_token(asking, length))
    known = asking.fresh(3068 - 60)
    asking.ask(known)
    turns = [
        round(1e3 * asking.times[asking.ask(known + asking.fresh(60))[0]][0], 2) for _ in range(5)
    ]
    say(case="second turn", prompt=3068, ms=turns)
    for streams in (1, 2, 4):
        rates = [decode_rate(asking, streams, 20) for _ in range(3)]
        say(case="decode", streams=streams, prompt=20, tokens_per_s=statistics.median(rates))
    for length in (2000, 32000):
        rate = decode_rate(asking, 1, length)
        say(case="decode", streams=1, prompt=length, tokens_per_s=rate)
    say(case="end", s=since(), held=held_bytes(), allocated=torch.cuda.memory_allocated())
    if arguments.kernels:
        for length in (108, 1508, 6008):
            by_function(asking, length)


if __name__ == "__main__":
    main()
