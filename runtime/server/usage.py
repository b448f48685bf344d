"""Counts of finished or running answers, as clients read them."""

from collections.abc import Sequence

from firmtoken.runtime.server.answer import Answer
from firmtoken.runtime.server.reply import (
    CompletionTokensDetails,
    PromptTokensDetails,
    Usage,
)


def usage_of(answers: Sequence[Answer]) -> Usage:
    """The sum over all answers of one request."""
    prompt = sum(answer.prompt_tokens for answer in answers)
    output = sum(answer.output_tokens for answer in answers)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=sum(answer.cached_tokens for answer in answers)
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(answer.reasoning_tokens for answer in answers)
        ),
    )
