"""The door: what can never fit is refused before anything is queued (D3)."""

from dataclasses import dataclass

from firmtoken.compiler.admission import need
from firmtoken.runtime.server.errors import ContextLengthExceeded, InvalidBody, QueueFull
from firmtoken.runtime.server.serving import ServingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an admitted request may use."""

    max_output: int
    pages: int
    """Pages it needs to be admitted: prompt and the reserved part of its output."""


def admit(prompt_tokens: int, asked_output: int | None, plan: ServingPlan, *, param: str) -> Budget:
    """The budget of a request; raises `ContextLengthExceeded` for one that no engine state could hold.

    A larger output than the context leaves is lowered, not refused: agents always ask for 32,000.
    """
    if prompt_tokens + 1 > plan.effective_context:
        raise ContextLengthExceeded(_too_long(prompt_tokens, plan), param=param)
    asked = plan.default_output if asked_output is None else asked_output
    output = min(asked, plan.effective_context - prompt_tokens)
    return Budget(
        max_output=output,
        pages=need(prompt_tokens, min(output, plan.output_reserve), plan.page_size),
    )


def check_prompts(count: int, plan: ServingPlan) -> None:
    """Raise `InvalidBody` for more prompts in one body than could ever be taken together.

    `QueueFull` would ask for another try, which could never succeed.
    """
    most = plan.queue + plan.max_num_seqs
    if count > most:
        raise InvalidBody(
            f"`prompt`: {count} prompts in one request, at most {most} can be taken together"
            " (`serving.requests` + `serving.queue`)",
            param="prompt",
            code="invalid_value",
        )


def check_queue(
    *,
    new: int,
    waiting: int,
    running: int,
    new_tokens: int,
    waiting_tokens: int,
    plan: ServingPlan,
) -> None:
    """Raise `QueueFull` if more than `queue` requests or `queue_tokens` prompt tokens would wait.

    A request the engine has not answered yet counts as waiting, unless a sequence is free for it.
    """
    free = max(0, plan.max_num_seqs - running)
    if waiting + new > plan.queue + free:
        raise QueueFull(
            f"{waiting} requests wait and {running} run: at most {plan.queue} may wait"
            " (`serving.queue`)"
        )
    # What comes to an empty queue is bounded by its number of prompts: to try again would not make it smaller.
    if waiting_tokens and waiting_tokens + new_tokens > plan.queue_tokens:
        raise QueueFull(
            f"{waiting_tokens} prompt tokens wait and this request has {new_tokens}:"
            f" at most {plan.queue_tokens} may wait ({plan.queue_tokens // plan.effective_context}"
            " x the context)"
        )


def _too_long(prompt_tokens: int, plan: ServingPlan) -> str:
    size = plan.page_size
    needed = need(prompt_tokens, 1, size)
    held = need(plan.effective_context, 0, size)
    return (
        f"This model's maximum context length is {plan.effective_context} tokens"
        f" ({held} pages of {size}), but the prompt has {prompt_tokens} tokens and at least 1 must"
        f" follow ({needed} pages); {_remedy(plan)}"
    )


def _remedy(plan: ServingPlan) -> str:
    if plan.effective_context >= plan.model_max:
        return "the model itself has no more positions: shorten the prompt"
    limit = f"the model allows {plan.model_max}"
    if plan.largest_context > plan.effective_context:
        return (
            "shorten the prompt or raise `serving.context` in the profile,"
            f" to at most {plan.largest_context} on this machine ({limit})"
        )
    # No larger context fits beside what the profile fixes: the pool if the context was asked for, else memory.
    cause = "`serving.pool`" if plan.limited_by == "asked" else f"`{plan.limited_by}`"
    return (
        f"shorten the prompt: {cause} leaves no room for more, `ft plan` shows what each context costs"
        f" ({limit})"
    )
