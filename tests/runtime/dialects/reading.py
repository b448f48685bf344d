"""Reads a text with a dialect, cut as a test wants it, into a form that tests compare."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from firmtoken.runtime.dialects.dialect import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    Delta,
    Dialect,
    Reasoning,
)
from firmtoken.runtime.dialects.schemas import ToolSchemas
from firmtoken.runtime.dialects.turn import Turn

TOOLS = ToolSchemas(
    {
        "write": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "mode": {"type": "integer"},
                "force": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "more": {"type": "object"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
        },
        "stop": {},
    }
)

Line = tuple[str, str]
"""A kind of delta and its text."""


def deltas(
    dialect: Dialect,
    pieces: Iterable[str],
    *,
    in_thought: bool = False,
    tools: ToolSchemas | None = TOOLS,
    one_call: bool = False,
) -> list[Delta]:
    turn = Turn(dialect, in_thought=in_thought, tools=tools, one_call=one_call)
    found = [delta for piece in pieces for delta in turn.feed(piece)]
    return found + list(turn.finish())


def lines(found: Sequence[Delta]) -> list[Line]:
    """Neighbours of one kind joined."""
    named = [_line(delta) for delta in found]
    return [
        (kind, "".join(text for _, text in group)) if kind not in ("call", "end") else (kind, text)
        for (kind, text), group in _runs(named)
    ]


def _runs(named: list[Line]) -> Iterator[tuple[Line, list[Line]]]:
    # Two calls in a row are two: only text is joined.
    for _, group in groupby(
        enumerate(named), key=lambda at: at[0] if at[1][0] in ("call", "end") else at[1][0]
    ):
        run = [line for _, line in group]
        yield run[0], run


def _line(delta: Delta) -> Line:
    match delta:
        case Reasoning():
            return "reasoning", delta.text
        case Content():
            return "content", delta.text
        case CallStart():
            return "call", delta.name
        case Arguments():
            return "arguments", delta.text
        case CallEnd():
            return "end", ""


def arguments(found: Sequence[Delta]) -> list[object]:
    """Of each complete call, decoded."""
    decoded: list[object] = []
    written = ""
    for delta in found:
        match delta:
            case CallStart():
                written = ""
            case Arguments():
                written += delta.text
            case CallEnd():
                decoded.append(json.loads(written))
    return decoded


def cuts(text: str) -> Iterator[list[str]]:
    """Every cut in two, and the text character by character."""
    for place in range(len(text) + 1):
        yield [text[:place], text[place:]]
    yield list(text)


def at(text: str, places: Sequence[int]) -> list[str]:
    """`text` cut at these places."""
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]
