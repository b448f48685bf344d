"""What an agent's client will feel, in numbers: a long first prompt, then turns that find it in the prefix cache."""

from dataclasses import dataclass

from firmtoken.compiler.admission import need
from firmtoken.compiler.costs import Costs, Residency
from firmtoken.compiler.facts import CacheChoice, Split
from firmtoken.compiler.hit_rates import hit_rate
from firmtoken.compiler.plan import Conversation, OnDemand
from firmtoken.compiler.speed import (
    compute_s,
    first_token_host_s,
    on_demand_s,
    prefill_s,
)

LONGEST_PROMPT = 30_000
"""What coding agents send at first; a longer context is for what comes later."""
TURN = 500
"""New tokens of a turn: a tool's answer or a short message."""
SMALL_SHARE = 16
"""Of a small context a turn and an answer take at most this part each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a conversation; two of them fit into one context."""

    prompt: int
    answer: int
    turn: int


def conversation_lengths(context: int, answer: int) -> Lengths:
    """Half of the context holds prompt, answer, turn and answer; the prompt is rounded down to two digits.

    `answer`: tokens that admission sets aside for an answer.
    """
    turn = min(TURN, context // SMALL_SHARE)
    answer = min(answer, context // SMALL_SHARE)
    room = context // 2 - 2 * answer - turn
    digits = max(0, len(str(room)) - 2)
    return Lengths(
        prompt=min(LONGEST_PROMPT, room // 10**digits * 10**digits), answer=answer, turn=turn
    )


def predict_conversation(
    costs: Costs,
    residency: Residency,
    cache: CacheChoice,
    split: Split,
    below: OnDemand,
    *,
    requests: int,
    answer: int,
) -> Conversation:
    """Seconds of one conversation alone on the machine, and how many of them run at once.

    Cold prompt: `first_token_s(prompt)`. Next turn: prompt and answer are cached but for their last token and a page
    that is not full, so `first_token_s(turn + rest)` at that depth; without a prefix cache everything is read again.
    At once: as many as `need(prompt + answer + turn, answer)` pages fit, at most `requests`.
    """
    lengths = conversation_lengths(split.context, answer)
    before = lengths.prompt + lengths.answer
    cached = 0 if cache.type == "none" else (before - 1) // cache.page_size * cache.page_size
    turn_s = first_token_s(costs, residency, below, before + lengths.turn - cached, cached)
    each = need(before + lengths.turn, lengths.answer, cache.page_size)
    return Conversation(
        prompt_tokens=lengths.prompt,
        prompt_s=first_token_s(costs, residency, below, lengths.prompt),
        answer_tokens=lengths.answer,
        turn_tokens=lengths.turn,
        turn_s=turn_s,
        at_once=min(requests, (split.pages - 1) // each),
    )


def first_token_s(
    costs: Costs, residency: Residency, below: OnDemand, tokens: int, depth: int = 0
) -> float:
    """`tokens` new tokens after `depth` cached ones: on demand if fewer than `below`, else streaming the bank.

    Behind cached tokens one snapshot of the linear layers' states comes over the link first.
    """
    before = first_token_host_s(costs.machine)
    if depth:
        before += costs.state_bytes / costs.machine.copy_rate
    if tokens >= (below.warm if depth else below.cold):
        return before + prefill_s(costs, residency, tokens, depth)
    hits = hit_rate(residency.fraction) if depth else residency.fraction
    # `on_demand_s` counts attention from the first token on; what lies before is added here.
    deeper = compute_s(costs, tokens, depth) - compute_s(costs, tokens, 0)
    return before + on_demand_s(costs, residency, tokens, hits) + deeper
