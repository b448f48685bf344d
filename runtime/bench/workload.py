"""What is asked: prompts of an exact length that share no page, from text the model's tokenizer knows."""

from collections.abc import Callable, Sequence

PARAGRAPH = (
    "A river carries water from the hills to the sea, and people have always built their towns beside it. "
    "The bridge is old, the market is loud, and the mill still turns when the snow melts in spring. "
)


def prompts(
    encode: Callable[[str], Sequence[int]], *, length: int, count: int, salt: int
) -> list[list[int]]:
    """`count` prompts of `length` tokens; the salt and the number come first, so that no prefix is shared."""
    return [_prompt(encode, length, f"{salt}-{number}: ") for number in range(count)]


def _prompt(encode: Callable[[str], Sequence[int]], length: int, head: str) -> list[int]:
    tokens = list(encode(head))
    body = list(encode(PARAGRAPH))
    while len(tokens) < length:
        tokens += body
    return tokens[:length]
