"""`need`: the one formula for pages, used by the door, the queue and the allocator (D3)."""


def need(prompt_tokens: int, output_tokens: int, page_size: int) -> int:
    """Pages that a request of this many prompt and output tokens holds at its end."""
    return -(-(prompt_tokens + output_tokens) // page_size)
