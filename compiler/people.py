"""What a plan means to the person who will use it, in plain words: waits, how many at once, what a client may send.

Every number stands in the plan: `estimates.conversation` (computed as conversation.py says), `estimates`, `kv_cache`,
`experts`, `schedule` and the ledgers.
"""

from collections.abc import Iterator

from firmtoken.compiler.evidence import COMPILED
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.quantities import count, rate, size, wait

HEADING = "what to expect (computed, not measured)"


def expectations(plan: Plan) -> tuple[tuple[str, str], ...]:
    """(label, sentences) in the order of what people ask first.

    At once: `estimates.conversation.at_once`. Lengths that surely fit together: any `max_num_seqs` requests of up to
    `pool // max_num_seqs` tokens, and `pool // context` of the full context (D2).
    """
    return (
        ("speed", _speed(plan)),
        ("at once", " ".join(_at_once(plan))),
        (
            "client",
            f"tell it {plan.context.effective:,} tokens of context, prompt and answer together",
        ),
        ("experts", " ".join(_experts(plan))),
        ("RAM", _host(plan)),
    )


def not_runnable(plan: Plan) -> str:
    """What a reader must know of a plan that nothing can launch yet; empty if all of its kernels are ready."""
    planned = dict.fromkeys(f"`{row.op}`" for row in plan.kernels if row.status == "planned")
    if not planned:
        return ""
    compiled = sum(row.evidence == COMPILED for row in plan.kernels)
    known = (
        f"{compiled} of its {len(plan.kernels)} kernels are" if compiled else "no kernel of it is"
    )
    return (
        f"cannot run yet: nothing launches {', '.join(planned)}; {known} known to compile for this card "
        f"(`ft check --kernels`){_shorter(plan)}"
    )


def longest_resident(plan: Plan) -> int | None:
    """The longest context on the frontier that leaves every expert on the device; None where none of them does.

    An offloaded plan has slots that stage its misses, even where all experts fit.
    """
    resident = (
        row.context for row in plan.frontier if row.resident_fraction == 1 and not row.staging_slots
    )
    return max(resident, default=None)


def _shorter(plan: Plan) -> str:
    longest = longest_resident(plan)
    if plan.experts.placement == "resident" or longest is None:
        return ""
    return f"; all experts stay on the device up to {longest:,} tokens of context"


def _speed(plan: Plan) -> str:
    told = plan.estimates.conversation
    parts = [
        f"new prompt of {count(told.prompt_tokens, 'token')}: first word after {wait(told.prompt_s)}"
    ]
    if told.turn_tokens:
        again = " (all is read again)" if plan.kv_cache.type == "none" else ""
        parts.append(f"next turn of {told.turn_tokens:,}: after {wait(told.turn_s)}{again}")
    parts.append(f"then {rate(plan.estimates.decode_tokens_per_s)} tokens/s; for one request alone")
    return "; ".join(parts)


def _at_once(plan: Plan) -> Iterator[str]:
    told, requests = plan.estimates.conversation, plan.schedule.max_num_seqs
    pool, context = plan.kv_cache.tokens, plan.context.effective
    agents = count(told.at_once, "such agent")
    if told.at_once == requests:
        yield f"{agents}, as many as `serving.requests` lets in; one more waits."
    else:
        yield f"{agents}; one more waits until there is room."
    if requests * context <= pool:
        yield f"Requests of any length fit together, {requests} at once."
        return
    yield (
        f"All requests together hold {pool:,} tokens (the pool): {requests} of up to {pool // requests:,} each, or "
        f"{pool // context} of {context:,}; when it is full, the youngest pauses and goes on later."
    )


def _experts(plan: Plan) -> Iterator[str]:
    experts, estimates, schedule = plan.experts, plan.estimates, plan.schedule
    if experts.placement == "resident":
        yield f"all {experts.total:,} stay on the device (resident): nothing is fetched while it serves."
        return
    missing = experts.total - experts.slots
    if not missing:
        yield f"all {experts.total:,} fit on the device, which still keeps account of them as if some did not."
        return
    below = schedule.on_demand_below
    yield (
        f"{experts.slots:,} of {experts.total:,} are on the device (resident), the others come from RAM over the "
        f"link. Each {schedule.prefill_span:,} tokens of a prompt fetch all {missing:,} that are missing, "
        f"{size(missing * experts.slot_bytes)} in {wait(estimates.bank_stream_s)} or more"
    )
    yield (
        f"(a prompt of fewer than {below.cold:,} tokens, a next turn of fewer than {below.warm:,}, only what it "
        "uses);"
    )
    yield f"a written token fetches about {size(estimates.bytes_per_token.link)}."


def _host(plan: Plan) -> str:
    host = plan.memory.host
    lines = {line.name: line.bytes for line in host.lines}
    parts = [
        f"{size(lines[name])} {what}"
        for name, what in (
            ("bank", f"for all {plan.experts.total:,} experts (the bank)"),
            ("restart_copy", "for a second copy of the experts (a quick restart)"),
            ("snapshots", "for snapshots of conversations"),
        )
        if lines.get(name)
    ]
    inside = f": {', '.join(parts)}" if parts else ""
    return f"{size(host.total)} of the {size(host.capacity)} that the profile gives this machine{inside}"
