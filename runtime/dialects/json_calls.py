"""Calls as one JSON object per block: `{"name": ..., "arguments": {...}}` (Hermes).

The arguments are JSON already and are handed on as they come, with one mend: control characters inside a string,
which JSON forbids and models write, are escaped. An end tag inside a string is part of the string, unless a line
break stands before it: a string cannot hold one unescaped, and the end of a block is written so.
"""

import re

from firmtoken.runtime.dialects.calls import MAX_NAME, Calls, Steps
from firmtoken.runtime.dialects.dialect import Arguments, CallEnd
from firmtoken.runtime.dialects.partial import cut
from firmtoken.runtime.dialects.schemas import is_json, quoted

HEAD = re.compile(
    rf'\s*\{{\s*"name"\s*:\s*"(?P<name>[^"\\<\n]{{1,{MAX_NAME}}})"\s*'
    r'(?:(?P<arguments>,\s*"arguments"\s*:\s*)(?=\{)|(?=\}))'
)
MAX_HEAD = 1024
"""Characters within which a call's arguments must have begun: else the text is content, and not kept waiting."""


class JsonCalls(Calls):
    """Reads one answer."""

    def __init__(self, block: str, end_block: str) -> None:
        super().__init__(block)
        self._end_block = end_block
        self._end_line = f"\n{end_block}"
        self._arguments: list[str] = []
        self._scan = _ObjectScan()

    def _opened(self) -> Steps:
        window = self._held[:MAX_HEAD]
        head = HEAD.match(window)
        if head is not None:
            self._held = self._held[head.end() :]
            yield from self._begin(head["name"])
            if head["arguments"] is None:
                yield from self._end("{}")
                self._state = self._behind_arguments
            else:
                self._arguments, self._scan = [], _ObjectScan()
                self._state = self._in_arguments
        elif not self._may_be_call(window):
            yield from self._not_a_tag(self._outside)

    def _may_be_call(self, window: str) -> bool:
        if len(window) == MAX_HEAD or self._end_block in window:
            return False
        return window.lstrip()[:1] in ("", "{")

    def _in_arguments(self) -> Steps:
        before, tag, rest = cut(self._held, (self._end_line,))
        length, text = self._scan.read(before)
        if text:
            self._arguments.append(text)
            yield Arguments(text=text)
        self._held = rest
        if self._scan.closed:
            self._held = before[length:] + (tag or "") + rest
            self._state = self._behind_arguments
            if is_json("".join(self._arguments)):
                yield CallEnd()
        elif tag is not None:  # the block ends, and its object does not: the call stays open
            self._leave_block()

    def _behind_arguments(self) -> Steps:
        tag = yield from self._prose_before(("}", self._end_block))
        if tag == self._end_block:
            self._leave_block()
        elif tag is not None:
            self._prose.tag()
            self._state = self._before_end_block

    def _before_end_block(self) -> Steps:
        if (yield from self._prose_before((self._end_block,))):
            self._leave_block()

    def _cut_short(self) -> Steps:
        if self._state == self._in_arguments:
            _, text = self._scan.read(self._held)
            self._held = ""
            if text:
                yield Arguments(text=text)


class _ObjectScan:
    """Where a JSON object ends, read piece by piece from its opening brace on."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.closed = False

    def read(self, text: str) -> tuple[int, str]:
        """How many characters belong to the object, and they themselves with control characters escaped."""
        mended = []
        for index, character in enumerate(text):
            mended.append(self._mended(character))
            self._take(character)
            if self.closed:
                return index + 1, "".join(mended)
        return len(text), "".join(mended)

    def _mended(self, character: str) -> str:
        return quoted(character)[1:-1] if self._in_string and character < " " else character

    def _take(self, character: str) -> None:
        if self._in_string:
            if not self._escaped and character == '"':
                self._in_string = False
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.closed = self._depth == 0
