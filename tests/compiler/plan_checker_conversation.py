"""What people are told of a conversation, once more: prompt, answer, turn and answer in half of the context."""

from collections.abc import Iterator

from tests.compiler.plan_checker_ledger import differ
from tests.compiler.plan_checker_split import Bench


def check_conversation(bench: Bench) -> Iterator[str]:
    """The lengths, both waits for a first token, and how many conversations the pages hold."""
    plan, cache = bench.plan, bench.plan["kv_cache"]
    context, page = plan["context"]["effective"], cache["page_size"]
    turn = min(500, context // 16)
    answer = min(1024, bench.asked["serving"]["output"], context // 16)
    prompt = min(30_000, _two_digits(context // 2 - 2 * answer - turn))
    cached = 0 if cache["type"] == "none" else (prompt + answer - 1) // page * page
    pages = -(-(prompt + answer + turn + answer) // page)
    due = {
        "prompt_tokens": prompt,
        "prompt_s": _first_token_s(bench, prompt, 0),
        "answer_tokens": answer,
        "turn_tokens": turn,
        "turn_s": _first_token_s(bench, prompt + answer + turn - cached, cached),
        "at_once": min(bench.requests, (cache["pages"] - 1) // pages),
    }
    yield from differ("estimates.conversation.", plan["estimates"]["conversation"], due)


def _two_digits(number: int) -> int:
    head, zeros = str(number)[:2], len(str(number)) - 2
    return int(head) * 10**zeros if zeros > 0 else number


def _first_token_s(bench: Bench, new: int, depth: int) -> float:
    """With 1.5 ms of the host, and behind cached tokens a snapshot over the link."""
    speed, below = bench.speed, bench.plan["schedule"]["on_demand_below"]
    before = speed.first_host_s
    if depth:
        before += bench.model.state_bytes / speed.machine.copy
    if new >= below["warm" if depth else "cold"]:
        return before + speed.prefill_s(new, depth)
    if not speed.missing:
        return before + speed.compute_s(new, depth)
    hits = speed.hit_rate if depth else speed.fraction
    deeper = speed.compute_s(new, depth) - speed.compute_s(new, 0)
    return before + speed.on_demand_s(new, hits) + deeper
