"""The thought at the head of an answer, told from the text behind it.

Line breaks at a thought's edges, and those behind its end, belong to its tags. Only the end tag ends a thought: a
call that is drafted inside one is thought. One exception, which models make: they end the whole answer with a call
and never close the thought. Then nothing stands behind the call, and it was meant.
"""

from collections.abc import Iterator
from typing import Literal

from firmtoken.runtime.dialects.dialect import CallBlock, Content, Reasoning
from firmtoken.runtime.dialects.partial import cut

THINK = "<think>"
END_THINK = "</think>"
TAGS = (THINK, END_THINK)


def opens_thought(prompt: str) -> bool:
    """True for a rendered prompt whose answer begins inside a thought."""
    return prompt.rstrip().endswith(THINK)


class Thoughts:
    """Reads one answer; `Content` is all that lies behind the thought, calls included."""

    def __init__(self, *, opened: bool, block: CallBlock | None) -> None:
        """`opened`: the prompt has opened the thought; `block`: how calls look, None where there can be none."""
        self._block = block
        self._held = ""
        self._state = self._at_beginning if opened else self._at_head
        self._line_breaks = ""
        """Those at the end of the thought so far."""

    @property
    def inside(self) -> bool:
        """True while the text is thought."""
        return self._state in (self._at_beginning, self._within, self._in_draft)

    def feed(self, text: str) -> Iterator[Reasoning | Content]:
        """What `text` makes sure."""
        self._held += text
        while True:
            before = self._state, self._held
            yield from self._state()
            if before == (self._state, self._held):
                return

    def finish(self) -> Iterator[Reasoning | Content]:
        """What was held back."""
        if self._block is not None and self._state == self._in_draft:
            self._held = self._block.begin + self._held
            calls = _verdict(self._held, self._block) == "calls"
            self._state = self._behind if calls else self._within
        held, self._held = self._held, ""
        if self.inside:
            yield from self._thought(held)
        elif held:
            yield Content(text=held)

    def _at_head(self) -> Iterator[Reasoning | Content]:
        rest = self._held.lstrip()
        if rest.startswith(THINK):
            self._held, self._state = rest.removeprefix(THINK), self._at_beginning
        elif not THINK.startswith(rest):
            self._state = self._behind
        yield from ()

    def _at_beginning(self) -> Iterator[Reasoning | Content]:
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._within
        yield from ()

    def _within(self) -> Iterator[Reasoning | Content]:
        block = () if self._block is None else (self._block.begin,)
        before, tag, self._held = cut(self._held, (END_THINK, *block))
        yield from self._thought(before)
        if tag == END_THINK:
            self._state = self._right_behind
        elif tag is not None:
            self._state = self._in_draft

    def _in_draft(self) -> Iterator[Reasoning | Content]:
        """Behind the tag of a block of calls, which is held back until something shows that it is thought."""
        assert self._block is not None
        draft, end_thought, _ = self._held.partition(END_THINK)
        if end_thought or _verdict(self._block.begin + draft, self._block) == "thought":
            yield from self._thought(self._block.begin)
            self._state = self._within

    def _right_behind(self) -> Iterator[Reasoning | Content]:
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._behind
        yield from ()

    def _behind(self) -> Iterator[Reasoning | Content]:
        text, self._held = self._held, ""
        if text:
            yield Content(text=text)

    def _thought(self, text: str) -> Iterator[Reasoning]:
        text = self._line_breaks + text
        shown = text.rstrip("\n")
        self._line_breaks = text[len(shown) :]
        if shown:
            yield Reasoning(text=shown)


def _verdict(text: str, block: CallBlock) -> Literal["calls", "thought", "open"]:
    """What a text is that begins with a block's tag: blocks of calls and no more, thought, or not to be said yet."""
    while text.startswith(block.begin):
        inner = text.removeprefix(block.begin).lstrip()
        if not inner.startswith(block.opening):
            return "open" if block.opening.startswith(inner) else "thought"
        _, end, text = text.partition(block.end)
        if not end:
            return "open"
        text = text.lstrip()
    if text == "":
        return "calls"
    return "open" if block.begin.startswith(text) else "thought"
