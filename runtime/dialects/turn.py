"""`Turn`: reads one answer in any dialect: its thought, its text, its calls, whole or in pieces alike.

Every part is a machine over the text and never looks at how it was cut, so any split gives the same deltas, joined.
"""

from collections.abc import Iterator

from firmtoken.runtime.dialects.dialect import CallEnd, Content, Delta, Dialect
from firmtoken.runtime.dialects.schemas import ToolSchemas
from firmtoken.runtime.dialects.thoughts import Thoughts


class Turn:
    """One answer."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        in_thought: bool,
        tools: ToolSchemas | None = None,
        one_call: bool = False,
    ) -> None:
        """`in_thought`: the prompt has opened it. Without `tools` what looks like a call is content."""
        self._thoughts = Thoughts(opened=in_thought, block=None if tools is None else dialect.block)
        self._calls = None if tools is None else dialect.calls(tools)
        self._one_call = one_call
        self.ended = False
        """True once a call is complete that had to be the only one: what follows is dropped."""

    @property
    def in_thought(self) -> bool:
        """True while the text is thought."""
        return self._thoughts.inside

    def feed(self, text: str) -> Iterator[Delta]:
        """Deltas that `text` completes."""
        for delta in self._thoughts.feed(text):
            yield from self._until_ended(self._read(delta))

    def finish(self) -> Iterator[Delta]:
        """What was held back."""
        for delta in self._thoughts.finish():
            yield from self._until_ended(self._read(delta))
        if self._calls is not None:
            yield from self._until_ended(self._calls.finish())

    def _read(self, delta: Delta) -> Iterator[Delta]:
        if isinstance(delta, Content) and self._calls is not None:
            yield from self._calls.feed(delta.text)
        else:
            yield delta

    def _until_ended(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        for delta in deltas:
            if not self.ended:
                yield delta
            self.ended = self.ended or (self._one_call and isinstance(delta, CallEnd))
