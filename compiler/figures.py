"""The figures by which two plans are compared, each with the words that people read."""

from collections.abc import Iterable
from dataclasses import dataclass

from firmtoken.compiler.plan import FrontierRow, Plan
from firmtoken.compiler.quantities import percent, rate, size, wait

SPEEDS = ("decode", "new prompt", "next turn")
OF_A_CONVERSATION = ("new prompt", "next turn", "agents at once")
LEAST_IDLE = 0.01
"""Of the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of a plan."""

    name: str
    text: str
    unit: str = ""
    """Said once behind both numbers of a change."""


def figures(plan: Plan) -> tuple[Figure, ...]:
    """In the order of what people ask first."""
    context, cache, experts = plan.context, plan.kv_cache, plan.experts
    told, requests = plan.estimates.conversation, plan.schedule.max_num_seqs
    return (
        Figure(name="context", text=f"{context.effective:,}"),
        Figure(name="pool", text=f"{cache.tokens:,}"),
        Figure(name="agents at once", text=str(told.at_once)),
        Figure(name="experts on the device", text=percent(experts.resident_fraction)),
        Figure(name="decode", text=rate(plan.estimates.decode_tokens_per_s), unit="tok/s"),
        Figure(
            name=f"decode of {requests} together",
            text=rate(chosen_row(plan.frontier).decode_tokens_per_s_full),
            unit="tok/s",
        ),
        Figure(name="new prompt", text=wait(told.prompt_s)),
        Figure(name="next turn", text=wait(told.turn_s)),
        Figure(name="idle on the device", text=_idle(plan)),
        Figure(name="RAM", text=size(plan.memory.host.total)),
    )


def _idle(plan: Plan) -> str:
    """Device memory that nothing uses; what is left between slots and pages is not worth a word."""
    device = plan.memory.device
    return size(device.free) if device.free > LEAST_IDLE * device.capacity else "nothing"


def chosen_row(frontier: Iterable[FrontierRow]) -> FrontierRow:
    """The row of the plan that the frontier belongs to."""
    return next(row for row in frontier if row.chosen)


def changes(before: Plan, after: Plan) -> list[str]:
    """`decode 205 -> 171 tok/s` for each figure that reads otherwise."""
    return [
        f"{now.name} {now.text} -> {then.text} {then.unit}".rstrip()
        for now, then in _comparable(before, after)
        if now.text != then.text
    ]


def unchanged_speeds(before: Plan, after: Plan) -> list[str]:
    """Which of decode, a new prompt and a next turn read the same."""
    pairs = _comparable(before, after)
    return [now.name for now, then in pairs if now.name in SPEEDS and now.text == then.text]


def same_conversation(before: Plan, after: Plan) -> bool:
    """Whether prompts, answers and turns of both are equally long."""
    one, two = before.estimates.conversation, after.estimates.conversation
    return (one.prompt_tokens, one.answer_tokens, one.turn_tokens) == (
        two.prompt_tokens,
        two.answer_tokens,
        two.turn_tokens,
    )


def _comparable(before: Plan, after: Plan) -> list[tuple[Figure, Figure]]:
    skipped = () if same_conversation(before, after) else OF_A_CONVERSATION
    then = {figure.name: figure for figure in figures(after)}
    return [
        (figure, then[figure.name])
        for figure in figures(before)
        if figure.name in then and figure.name not in skipped
    ]
