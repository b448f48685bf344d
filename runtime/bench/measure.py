"""The rows of `ft bench`, in order: the engine alone, then the same through HTTP, then first tokens."""

from collections.abc import Awaitable, Callable, Sequence

from firmtoken.runtime.bench.rows import Row, Stream, decode_rate, row

Prompts = Callable[[int, int, int], list[list[int]]]
"""(length, count, salt) -> token ids."""
Run = Callable[[Sequence[Sequence[int]], int], Awaitable[list[Stream]]]
"""All prompts at once, so many tokens each."""

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 192
TTFT_LENGTHS = (64, 512, 2048)
STREAMS = 4
FREE_TOKENS = 64
"""Left of the context behind the longest prompt, for a second turn."""
LEAST_CONTEXT = PROMPT_TOKENS + OUTPUT_TOKENS + FREE_TOKENS


async def decode_rows(
    where: str, run: Run, prompts: Prompts, *, runs: int, estimate: float
) -> list[Row]:
    """Decode speed of one stream and of four together."""
    await run(prompts(PROMPT_TOKENS, 1, 0), OUTPUT_TOKENS)  # warm caches with another topic
    single, several = [], []
    for salt in range(1, runs + 1):
        single.append(decode_rate(await run(prompts(PROMPT_TOKENS, 1, salt), OUTPUT_TOKENS)))
        together = prompts(PROMPT_TOKENS, STREAMS, salt + runs)
        several.append(decode_rate(await run(together, OUTPUT_TOKENS)))
    return [
        row(f"{where} decode, 1 stream", "tok/s", single, estimate=estimate),
        row(f"{where} decode, {STREAMS} streams", "tok/s", several),
    ]


async def first_token_rows(
    where: str, run: Run, prompts: Prompts, *, runs: int, longest: int
) -> list[Row]:
    """Time to first token of cold prompts, and of a second turn that finds the first one cached."""
    rows = []
    for length in TTFT_LENGTHS:
        if length > longest:
            continue
        cold = [
            (await run(prompts(length, 1, 100 * length + salt), 2))[0].ttft_s
            for salt in range(runs)
        ]
        rows.append(row(f"{where} TTFT, {length:,} tokens", "s", cold))
    length = max(length for length in TTFT_LENGTHS if length <= longest)
    again = []
    for salt in range(runs):
        [first] = prompts(length, 1, 100 * length + salt)
        again.append((await run([[*first, *first[:50]]], 2))[0].ttft_s)
    return [*rows, row(f"{where} TTFT, second turn of 50 tokens", "s", again)]
