"""`need`: the one formula for pages, used by the door, the queue and the allocator (D3)."""

OUTPUT_RESERVE = 1024
"""Tokens that admission sets aside for an answer, or fewer if the request's own budget is smaller."""


def need(prompt_tokens: int, output_tokens: int, page_size: int) -> int:
    """Pages that a request of this many prompt and output tokens holds at its end."""
    return -(-(prompt_tokens + output_tokens) // page_size)
