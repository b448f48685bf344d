"""Text that may be the beginning of a word: what a reader of a stream must not show yet."""

from collections.abc import Iterable, Sequence


def partial_end(text: str, words: Iterable[str]) -> int:
    """Length of the longest end of `text` with which one of `words` begins, the whole word not counted."""
    words = tuple(words)
    longest = max((len(word) for word in words), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(len(word) > length and word.startswith(tail) for word in words):
            return length
    return 0


def cut(text: str, tags: Sequence[str]) -> tuple[str, str | None, str]:
    """`text` before its first tag, the tag, and what follows; without one, what is none for sure and the rest."""
    found = [(start, tag) for tag in tags if (start := text.find(tag)) >= 0]
    if found:
        start, tag = min(found)
        return text[:start], tag, text[start + len(tag) :]
    sure = len(text) - partial_end(text, tags)
    return text[:sure], None, text[sure:]
