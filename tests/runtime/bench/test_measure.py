"""The rows of `ft bench`, of a server whose clock is made up."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import msgspec
import pytest

from firmtoken.runtime.bench.estimates import PlanEstimates
from firmtoken.runtime.bench.measure import Alone, Bench, client_rows, engine_rows
from firmtoken.runtime.bench.questions import QUESTIONS
from firmtoken.runtime.bench.rows import Row, Stream, row
from firmtoken.runtime.cli.compiled import Compiled, compile_argument
from firmtoken.runtime.engine.messages import Stats

PAGE = 64
STEP_S = 0.002
SLOW_START_S = 0.5
GPU = QUESTIONS["cuda"]


@dataclass
class Server:
    """Reads 10,000 new tokens a second, writes 500, half of that after a long prompt; its first answer is slow."""

    asked: list[tuple[int, ...]] = field(default_factory=list)

    async def run(self, prompts: Sequence[Sequence[int]], output: int) -> list[Stream]:
        return [self._stream(tuple(prompt), output) for prompt in prompts]

    def _stream(self, prompt: tuple[int, ...], output: int) -> Stream:
        cached = max((_shared(prompt, known) for known in self.asked), default=0)
        start = (len(prompt) - cached) / 10_000 + (0 if self.asked else SLOW_START_S)
        self.asked.append(prompt)
        step = STEP_S if len(prompt) < 10_000 else 2 * STEP_S
        arrivals = tuple(start + step * number for number in range(output))
        return Stream(arrivals=arrivals, tokens=output, cached=cached)


def _shared(prompt: tuple[int, ...], known: tuple[int, ...]) -> int:
    """Whole pages of the same text; the last token is always computed."""
    pages = 0
    while pages + PAGE < len(known) and prompt[: pages + PAGE] == known[: pages + PAGE]:
        pages += PAGE
    return pages


def prompts(length: int, count: int, salt: int) -> list[list[int]]:
    return [[salt, number, *range(length - 2)] for number in range(count)]


@cache
def compiled() -> Compiled:
    return compile_argument("h200-qwen", ("serving.context=64k",))


def bench(
    server: Server, kind: str = "cuda", *, runs: int = 3, begin: Callable[[str], object] = str
) -> Bench:
    return Bench(
        where="HTTP",
        run=server.run,
        prompts=prompts,
        questions=QUESTIONS[kind],
        estimates=PlanEstimates(compiled().loaded.profile, compiled().plan),
        runs=runs,
        streams=(1, 4),
        begin=begin,
    )


def rows_of(kind: str = "cuda", *, context: int = 65_536, alone: Alone | None = None) -> list[Row]:
    nothing = Alone(decode=[], steps=[])
    asked = bench(Server(), kind)
    return asyncio.run(client_rows(asked, nothing if alone is None else alone, context=context))


def test_a_gpu_answers_the_questions_that_its_peers_were_asked() -> None:
    step = row("engine decode step on the device, 1 stream", "ms", [1.8])
    found = {one.name: one for one in rows_of(alone=Alone(decode=[], steps=[step]))}
    values = {name: round(one.value, 4) for name, one in found.items()}
    assert values == {
        "HTTP decode, 1 stream": 500.0,
        "HTTP decode, 4 streams": 2000.0,
        "HTTP TTFT, 108 tokens": 0.0108,
        "HTTP TTFT, 1,508 tokens": 0.1508,
        "HTTP TTFT, 6,008 tokens": 0.6008,
        "HTTP TTFT, second turn: 3,068 tokens, 61 new": 0.0124,
        "HTTP first request after ready, over steady": round(0.5108 / 0.0108, 4),
        "HTTP decode after 32,000 tokens, over short": 0.5,
        "HTTP decode step, wall minus device": 0.2,
    }
    assert found["HTTP TTFT, second turn: 3,068 tokens, 61 new"].note == "2,944 tokens cached"
    assert [len(one.runs) for one in found.values()] == [3, 3, 3, 3, 3, 3, 1, 3, 3]


def test_each_row_is_named_before_it_is_measured() -> None:
    """Minutes without a word look like a program that hangs."""
    told: list[str] = []
    asked = bench(Server(), begin=told.append)
    rows = asyncio.run(client_rows(asked, Alone(decode=[], steps=[]), context=65_536))
    first, warm_up, *others = told
    assert (first, warm_up) == ("HTTP first request after ready", "HTTP warm-up")
    assert set(others) == {one.name for one in rows if not one.name.startswith(first)}


def test_a_decode_row_says_how_deep_it_is_because_a_plan_says_its_own_number_of_8k() -> None:
    decode, *_ = rows_of()
    assert decode.note == "236 tokens deep, in `ft plan` 8,192"


def test_what_the_context_does_not_hold_is_not_asked() -> None:
    names = [one.name for one in rows_of(context=4096)]
    assert "HTTP TTFT, 6,008 tokens" not in names
    assert not any("32,000" in name for name in names)
    assert "HTTP TTFT, second turn: 3,068 tokens, 61 new" in names
    small = [one.name for one in rows_of(context=GPU.least_context)]
    assert "HTTP TTFT, second turn: 168 tokens, 61 new" in small


def test_a_cpu_is_asked_nothing_that_takes_minutes() -> None:
    names = [one.name for one in rows_of("cpu")]
    assert names == [
        "HTTP decode, 1 stream",
        "HTTP decode, 4 streams",
        "HTTP TTFT, 64 tokens",
        "HTTP TTFT, 512 tokens",
        "HTTP TTFT, 2,048 tokens",
        "HTTP TTFT, second turn: 2,098 tokens, 50 new",
        "HTTP first request after ready, over steady",
    ]


def test_the_plan_estimates_each_row_at_its_own_lengths() -> None:
    found = {one.name: one.estimate for one in rows_of()}
    one, four = found["HTTP decode, 1 stream"], found["HTTP decode, 4 streams"]
    assert one < four < 4 * one
    lengths = [found[f"HTTP TTFT, {length:,} tokens"] for length in GPU.first_tokens]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
    turn = found["HTTP TTFT, second turn: 3,068 tokens, 61 new"]
    assert lengths[0] < turn < lengths[1]  # 124 tokens behind 2,944
    assert (
        0.5 < found["HTTP decode after 32,000 tokens, over short"] <= 1
    )  # launches may bound both
    estimates = PlanEstimates(compiled().loaded.profile, compiled().plan)
    told = compiled().plan.estimates.decode_tokens_per_s  # at depth 8k
    assert 1 / estimates.step_s(8192) == pytest.approx(told)


NO_STATS = Stats(
    running=0,
    waiting=0,
    pages_free=0,
    pages_cached=0,
    pages_total=0,
    state_slots_free=0,
    snapshot_slots_free=0,
    steps=0,
    prompt_tokens=0,
    cached_tokens=0,
    output_tokens=0,
    preemptions=0,
    expert_hits=0,
    expert_misses=0,
    link_bytes={},
)


def test_the_engine_alone_tells_what_the_device_needs_for_a_step() -> None:
    server = Server()

    async def counters() -> Stats:
        steps = 100 * len(server.asked)
        return msgspec.structs.replace(NO_STATS, timed_steps=steps, timed_s=0.0018 * steps)

    asked = replace(bench(server, runs=1), where="engine")
    alone = asyncio.run(engine_rows(asked, counters))
    assert [one.name for one in alone.decode] == [
        "engine decode, 1 stream",
        "engine decode, 4 streams",
    ]
    assert [(one.name, round(one.value, 6), one.unit) for one in alone.steps] == [
        ("engine decode step on the device, 1 stream", 1.8, "ms"),
        ("engine decode step on the device, 4 streams", 1.8, "ms"),
    ]


def test_a_device_that_does_not_measure_itself_is_not_asked_for_its_steps() -> None:
    async def counters() -> Stats:
        raise AssertionError("asked")

    assert asyncio.run(engine_rows(bench(Server(), "cpu", runs=1), counters)).steps == []
