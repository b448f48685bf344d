"""`Calls`: what all spellings of tool calls share: text between blocks, a tag that turns out to be none."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence

from firmtoken.runtime.dialects.dialect import Arguments, CallEnd, CallStart, Delta
from firmtoken.runtime.dialects.partial import cut
from firmtoken.runtime.dialects.prose import Prose

Steps = Generator[Delta, None, None]
MAX_NAME = 256
"""Characters of a name that readers take: a tool with a longer one could never be called."""


class Calls(ABC):
    """A machine over one held text: each state reads what it can and leaves the rest.

    A call begins once its name is read: malformed before that, the text is content as it stands. From there on
    every text has a meaning, so that nothing shown is ever taken back: what is no part of a call is content, and a
    call that the answer's end cuts keeps its arguments open, which no client can take for the whole of them.
    """

    def __init__(self, block: str) -> None:
        self._block = block
        self._prose = Prose()
        self._held = ""
        self._verbatim = ""
        """A tag that was read and may turn out to be text."""
        self._in_block_of_calls = False
        self._state: Callable[[], Steps] = self._outside

    def feed(self, text: str) -> Iterator[Delta]:
        """Deltas that `text` completes."""
        self._held += text
        while True:
            before = self._state, self._held
            yield from self._state()
            if before == (self._state, self._held):
                return

    def finish(self) -> Iterator[Delta]:
        """What was held back; a call that was cut stays without its end."""
        yield from self._cut_short()
        if not self._in_block_of_calls:  # there, what is held is a piece of a tag
            yield from self._prose.text(self._verbatim + self._held)
        yield from self._prose.finish()
        self._verbatim = self._held = ""

    @abstractmethod
    def _opened(self) -> Steps:
        """Behind the tag of a block: a call, or text that only looked like one."""

    @abstractmethod
    def _cut_short(self) -> Steps:
        """The text ends here: what is held of a call's arguments."""

    def _outside(self) -> Steps:
        if (yield from self._prose_before((self._block,))):
            self._verbatim, self._state = self._block, self._opened

    def _prose_before(self, tags: Sequence[str]) -> Generator[Delta, None, str | None]:
        """Read on to the first of `tags`, which is returned; the rest stays held."""
        before, tag, self._held = cut(self._held, tags)
        yield from self._prose.text(before)
        return tag

    def _not_a_tag(self, state: Callable[[], Steps]) -> Steps:
        yield from self._prose.text(self._verbatim)
        self._verbatim, self._state = "", state

    def _begin(self, name: str) -> Steps:
        self._verbatim, self._in_block_of_calls = "", True
        self._prose.tag()
        yield CallStart(name=name)

    def _end(self, closing: str) -> Steps:
        yield Arguments(text=closing)
        yield CallEnd()

    def _leave_block(self) -> None:
        self._prose.tag()
        self._in_block_of_calls, self._state = False, self._outside
