"""Calls whose every value stands between tags of its own, without quotes.

Where does a value end that holds the text of its own end tag? `</parameter>` ends it if, behind white space, the
next parameter or the end of the call follows; else it is part of the value. A value that holds even that sequence
cannot be told from the end: the families have no escape.
"""

import re
from dataclasses import dataclass

from firmtoken.runtime.dialects.calls import MAX_NAME, Calls, Steps
from firmtoken.runtime.dialects.dialect import Arguments
from firmtoken.runtime.dialects.partial import partial_end
from firmtoken.runtime.dialects.schemas import STRING, ToolSchemas, quoted, value_json

NAME = r'[^<>"\n]'


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTags:
    """How a family writes them."""

    block: str
    end_block: str
    call: str
    """Stands before the tool's name."""
    end_call: str
    parameter: str
    """Stands before the parameter's name."""
    end_parameter: str
    head_end: str
    """Stands behind either name."""
    padded: bool
    """One line break on each side of a value belongs to its tags."""


class TaggedCalls(Calls):
    """Reads one answer."""

    def __init__(self, tags: CallTags, schemas: ToolSchemas) -> None:
        super().__init__(tags.block)
        self._tags = tags
        self._schemas = schemas
        self._after_value = (tags.parameter, tags.end_call, tags.end_block)
        self._head = re.compile(f"({NAME}{{1,{MAX_NAME}}}){re.escape(tags.head_end)}")
        self._part_of_head = re.compile(
            f"{NAME}{{0,{MAX_NAME}}}(?:{re.escape(tags.head_end[:-1])})?"
        )
        self._name = ""
        self._num_values = 0
        self._kinds = STRING
        self._value: list[str] = []
        """Pieces of a value that is not shown before it is whole."""

    def _opened(self) -> Steps:
        rest = self._held.lstrip()
        if rest.startswith(self._tags.call):
            self._verbatim += self._held[: len(self._held) - len(rest)] + self._tags.call
            self._held = rest.removeprefix(self._tags.call)
            self._state = self._in_name
        elif not self._tags.call.startswith(rest):
            yield from self._not_a_tag(self._outside)

    def _in_name(self) -> Steps:
        if name := self._take_head():
            yield from self._begin(name)
        elif not self._may_be_head():
            yield from self._not_a_tag(self._in_block if self._in_block_of_calls else self._outside)

    def _in_block(self) -> Steps:
        tag = yield from self._prose_before((self._tags.call, self._tags.end_block))
        if tag == self._tags.call:
            self._verbatim, self._state = tag, self._in_name
        elif tag is not None:
            self._leave_block()

    def _begin(self, name: str) -> Steps:
        self._name, self._num_values, self._state = name, 0, self._in_call
        yield from super()._begin(name)

    def _in_call(self) -> Steps:
        tag = yield from self._prose_before(self._after_value)
        if tag is None:
            return
        if tag == self._tags.parameter:
            self._verbatim, self._state = tag, self._in_parameter_name
            return
        yield from self._end("}" if self._num_values else "{}")
        if tag == self._tags.end_call:
            self._prose.tag()
            self._state = self._in_block
        else:
            self._leave_block()

    def _in_parameter_name(self) -> Steps:
        if name := self._take_head():
            self._verbatim = ""
            self._prose.tag()
            self._kinds = self._schemas.kinds(self._name, name)
            opening = ", " if self._num_values else "{"
            opening += f"{quoted(name)}: "
            self._num_values += 1
            yield Arguments(text=opening + '"' if self._is_text else opening)
            self._state = self._before_value if self._tags.padded else self._in_value
        elif not self._may_be_head():
            yield from self._not_a_tag(self._in_call)

    def _before_value(self) -> Steps:
        if self._held:
            self._held = self._held.removeprefix("\n")
            self._state = self._in_value
        yield from ()

    def _in_value(self) -> Steps:
        end_tag = self._tags.end_parameter
        end = self._held.find(end_tag)
        if end < 0:
            sure = len(self._held) - partial_end(self._held, self._ends_of_value)
            yield from self._piece(self._held[:sure])
            self._held = self._held[sure:]
            return
        behind = self._held[end + len(end_tag) :]
        rest = behind.lstrip()
        if rest.startswith(self._after_value):
            yield from self._last_piece(self._held[:end])
            self._held, self._state = rest, self._in_call
        elif not any(tag.startswith(rest) for tag in self._after_value):
            yield from self._piece(self._held[: end + len(end_tag)])
            self._held = behind

    def _cut_short(self) -> Steps:
        if self._state != self._in_value:
            return
        value, end_tag, _ = self._held.partition(self._tags.end_parameter)
        self._held = ""
        if end_tag:
            yield from self._last_piece(value)
            return
        yield from self._piece(value)
        if self._value:
            yield Arguments(text="".join(self._value))

    @property
    def _is_text(self) -> bool:
        return self._kinds == STRING

    @property
    def _ends_of_value(self) -> tuple[str, ...]:
        tag = self._tags.end_parameter
        return (f"\n{tag}", tag) if self._tags.padded else (tag,)

    def _piece(self, text: str) -> Steps:
        if text and self._is_text:
            yield Arguments(text=quoted(text)[1:-1])
        elif text:
            self._value.append(text)

    def _last_piece(self, text: str) -> Steps:
        yield from self._piece(text.removesuffix("\n") if self._tags.padded else text)
        if self._is_text:
            yield Arguments(text='"')
        else:
            yield Arguments(text=value_json("".join(self._value), self._kinds))
            self._value.clear()

    def _take_head(self) -> str | None:
        """The name, once it is there whole; its tag is then read."""
        head = self._head.match(self._held)
        if head is None:
            return None
        self._held = self._held[head.end() :]
        return head[1]

    def _may_be_head(self) -> bool:
        return self._part_of_head.fullmatch(self._held) is not None
