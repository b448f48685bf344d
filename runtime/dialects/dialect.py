"""The seam between decoded text and what a client receives: a family's spelling as data, text in, deltas out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from firmtoken.runtime.dialects.schemas import ToolSchemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """Text of the thought."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """A tool call begins; what follows belongs to it until the next one begins."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """A piece of the call's arguments: JSON text of an object, complete only once the call has ended."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The call is complete: its arguments, joined, are one JSON object."""


Delta = Reasoning | Content | CallStart | Arguments | CallEnd
"""What a dialect tells apart."""


class CallReader(Protocol):
    """Finds the calls in the text behind the thought."""

    def feed(self, text: str) -> Iterator[Delta]:
        """Deltas that `text` completes."""
        ...

    def finish(self) -> Iterator[Delta]:
        """What was held back; a call that the text's end cuts gets no `CallEnd`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBlock:
    """How a block of calls is told from text that speaks of one."""

    begin: str
    end: str
    opening: str
    """What stands first in it, behind white space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One family's spelling."""

    name: str
    end_of_turn: str
    """The control token that must be among a checkpoint's stop ids, or an answer runs on into the next turn."""
    call_tags: tuple[str, ...]
    """Tags of calls that may be tokens of their own, to be read even where a tokenizer calls them special."""
    block: CallBlock
    past_arguments: Literal["text", "mapping"]
    """How the family's template takes the arguments of past calls: as the client wrote them, or decoded."""
    calls: Callable[[ToolSchemas], CallReader]
