"""The rows of `ft bench`, in order: the engine alone, then what a client of the server meets."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import median

from firmtoken.compiler.estimate_constants import REFERENCE_DEPTH
from firmtoken.runtime.bench.estimates import PlanEstimates
from firmtoken.runtime.bench.questions import FREE_TOKENS, Questions
from firmtoken.runtime.bench.rows import Row, Stream, decode_rate, row
from firmtoken.runtime.engine.messages import Stats

Prompts = Callable[[int, int, int], list[list[int]]]
"""(length, count, salt) -> token ids."""
Run = Callable[[Sequence[Sequence[int]], int], Awaitable[list[Stream]]]
"""All prompts at once, so many tokens each."""
Counters = Callable[[], Awaitable[Stats]]

MS = 1e3
FIRST_REQUEST = "first request after ready"
FIRST_TOKEN = 2
"""Tokens of an answer of which only the first is waited for: it comes in a chunk of its own, as in a longer answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Whom to ask what, how often."""

    where: str
    """Begins the name of every row."""
    run: Run
    prompts: Prompts
    questions: Questions
    estimates: PlanEstimates
    runs: int
    streams: tuple[int, ...]
    """How many together, in the decode rows; first of all one."""
    begin: Callable[[str], object]
    """Told the name of each row before it is measured."""
    salts: Iterator[int] = field(default_factory=count)
    """One for each question, so that nobody's prompt is in the prefix cache already."""

    async def decode_rows(self) -> list[Row]:
        """Tokens a second of one stream, and of several together."""
        return [
            row(
                self._begun(f"decode, {_streams(streams)}"),
                "tok/s",
                [await self._decode(streams) for _ in range(self.runs)],
                estimate=streams / self._step_s(streams),
                note=f"{self._depth():,} tokens deep, in `ft plan` {REFERENCE_DEPTH:,}",
            )
            for streams in self.streams
        ]

    async def device_rows(self, counters: Counters) -> list[Row]:
        """Milliseconds of a decode step by the device's own clock, from its first launch to its last."""
        return [
            row(
                self._begun(f"decode step on the device, {_streams(streams)}"),
                "ms",
                [await self._device_step(streams, counters) for _ in range(self.runs)],
                estimate=MS * self.estimates.device_step_s(self._depth(), streams=streams),
            )
            for streams in self.streams
        ]

    async def first_token_rows(self, longest: int) -> list[Row]:
        """Seconds to the first token of new prompts of up to `longest` tokens, and of a second turn."""
        rows = []
        for length in self.questions.first_tokens:
            if length > longest:
                continue
            name = self._begun(f"TTFT, {length:,} tokens")
            waits = [(await self.first_token(length)).ttft_s for _ in range(self.runs)]
            rows.append(row(name, "s", waits, estimate=self.estimates.first_token_s(length)))
        return [*rows, await self._second_turn(longest)]

    async def deep_row(self, short: Row) -> Row:
        """Decode speed of one stream behind a long prompt, over that behind a `short` one."""
        depth = self.questions.deep
        assert depth is not None
        name = self._begun(f"decode after {depth:,} tokens, over short")
        rates = [await self._decode(1, depth) for _ in range(self.runs)]
        return row(
            name,
            "",
            [rate / short.value for rate in rates],
            estimate=self._step_s(1) / self._step_s(1, depth),
            note=f"{median(rates):,.1f} tok/s",
        )

    async def first_request(self) -> Stream:
        """The first that a server gets."""
        self._begun(FIRST_REQUEST)
        return await self.first_token(min(self.questions.first_tokens))

    async def first_token(self, length: int) -> Stream:
        """One new prompt."""
        [stream] = await self.run(self.prompts(length, 1, next(self.salts)), FIRST_TOKEN)
        return stream

    async def warm(self) -> None:
        """What decode rows ask, for nothing."""
        self._begun("warm-up")
        await self._decode(1)

    async def _decode(self, streams: int, prompt: int | None = None) -> float:
        length = self.questions.prompt if prompt is None else prompt
        prompts = self.prompts(length, streams, next(self.salts))
        return decode_rate(await self.run(prompts, self.questions.output))

    async def _device_step(self, streams: int, counters: Counters) -> float:
        before = await counters()
        await self._decode(streams)
        after = await counters()
        return MS * (after.timed_s - before.timed_s) / (after.timed_steps - before.timed_steps)

    async def _second_turn(self, longest: int) -> Row:
        new = self.questions.turn
        length = max(known for known in self.questions.known if known <= longest)
        name = self._begun(f"TTFT, second turn: {length + new:,} tokens, {new} new")
        [known] = self.prompts(length, 1, next(self.salts))
        await self.run([known], FIRST_TOKEN)
        waits, cached = [], []
        for _ in range(self.runs):
            [added] = self.prompts(new, 1, next(self.salts))
            [stream] = await self.run([[*known, *added]], FIRST_TOKEN)
            waits.append(stream.ttft_s)
            cached.append(stream.cached)
        seen = min(cached)
        return row(
            name,
            "s",
            waits,
            estimate=self.estimates.first_token_s(length + new - seen, seen),
            note=f"{seen:,} tokens cached",
        )

    def _begun(self, what: str) -> str:
        """The name of a row, which is said."""
        name = f"{self.where} {what}"
        self.begin(name)
        return name

    def _step_s(self, streams: int, prompt: int | None = None) -> float:
        """The estimate of a step half-way through an answer."""
        return self.estimates.step_s(self._depth(prompt), streams=streams)

    def _depth(self, prompt: int | None = None) -> int:
        """Tokens half-way through an answer to a prompt of so many, else of those before decode rows."""
        before = self.questions.prompt if prompt is None else prompt
        return before + self.questions.output // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """What the engine does without a server."""

    decode: list[Row]
    steps: list[Row]
    """By the device's own clock; empty where it has none."""


async def engine_rows(bench: Bench, counters: Counters) -> Alone:
    """Decode speed, and the device's part of it."""
    await bench.warm()
    decode = await bench.decode_rows()
    return Alone(
        decode=decode, steps=await bench.device_rows(counters) if bench.questions.timed else []
    )


async def client_rows(bench: Bench, alone: Alone, *, context: int) -> list[Row]:
    """What a client meets, from the first request after ready on; what does not fit into `context` is left out."""
    longest = context - FREE_TOKENS
    first = await bench.first_request()
    await bench.warm()
    decode = await bench.decode_rows()
    firsts = await bench.first_token_rows(longest)
    steady, where = firsts[0], bench.where
    rows = [*decode, *firsts]
    rows.append(
        row(
            f"{where} {FIRST_REQUEST}, over steady",
            "",
            [first.ttft_s / steady.value],
            note=f"{first.ttft_s:.3f} s",
        )
    )
    deep = bench.questions.deep
    if deep is not None and deep + bench.questions.output <= longest:
        rows.append(await bench.deep_row(decode[0]))
    if alone.steps:
        beside = [MS / rate - alone.steps[0].value for rate in decode[0].runs]
        rows.append(
            row(
                f"{where} decode step, wall minus device",
                "ms",
                beside,
                estimate=MS * bench.estimates.step_host_s,
            )
        )
    return rows


def _streams(number: int) -> str:
    return "1 stream" if number == 1 else f"{number} streams"
