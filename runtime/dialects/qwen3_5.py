"""Qwen3.5 and Qwen3.6: ChatML turns, thoughts between <think> tags.

Turns are `<|im_start|>ROLE\\n...<|im_end|>\\n`; both end ids stand in generation_config.json (config.json names
only `<|endoftext|>`, with which an answer would run through the end of its turn).
"""

from collections.abc import Iterator

from firmtoken.runtime.dialects.dialect import Content, Delta

THINK = "<think>"
END_THINK = "</think>"


class Qwen3_5:
    """Drops an empty thought at the head of an answer; all else is content."""

    name = "qwen3_5"

    def __init__(self) -> None:
        self._held = ""
        self._in_content = False

    def feed(self, text: str) -> Iterator[Delta]:
        """Deltas that `text` completes; the head is held while it may still be an empty thought."""
        if not self._in_content:
            self._held += text
            if _may_be_empty_thought(self._held):
                return
            self._in_content = True
            text, self._held = _without_empty_thought(self._held), ""
        if text:
            yield Content(text=text)

    def finish(self) -> Iterator[Delta]:
        """The head, if the answer ended inside it."""
        text, self._held = _without_empty_thought(self._held), ""
        self._in_content = True
        if text:
            yield Content(text=text)


def _may_be_empty_thought(text: str) -> bool:
    """True while the text is white space, an empty thought and white space, cut anywhere."""
    rest = text.lstrip()
    for tag in (THINK, END_THINK):
        if len(rest) < len(tag):
            return tag.startswith(rest)
        if not rest.startswith(tag):
            return False
        rest = rest.removeprefix(tag).lstrip()
    return not rest


def _without_empty_thought(text: str) -> str:
    rest = text.lstrip()
    if not rest.startswith(THINK):
        return text
    rest = rest.removeprefix(THINK).lstrip()
    if not rest.startswith(END_THINK):
        return text
    return rest.removeprefix(END_THINK).lstrip()
