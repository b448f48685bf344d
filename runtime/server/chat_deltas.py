"""A dialect's deltas in the shapes of chat completions: chunks of a stream, and the same as one message."""

from collections.abc import Iterable, Iterator

from firmtoken.runtime.dialects.dialect import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    Delta,
    Reasoning,
)
from firmtoken.runtime.server.reply import (
    CalledFunction,
    ChatDelta,
    ChatMessage,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
)


class ChatDeltas:
    """The chunks of one answer; knows which call it is in."""

    def __init__(self, call_ids: str) -> None:
        """`call_ids`: how the ids of calls begin, the call's index follows."""
        self._call_ids = call_ids
        self._call = -1

    def of(self, deltas: Iterable[Delta]) -> Iterator[ChatDelta]:
        """Neighbours of one kind share a chunk."""
        for delta in _joined(deltas):
            match delta:
                case Reasoning():
                    yield ChatDelta(reasoning_content=delta.text, reasoning=delta.text)
                case Content():
                    yield ChatDelta(content=delta.text)
                case CallStart():
                    self._call += 1
                    yield self._call_delta(
                        FunctionDelta(name=delta.name, arguments=""),
                        call_id=f"{self._call_ids}_{self._call}",
                    )
                case Arguments():
                    yield self._call_delta(FunctionDelta(arguments=delta.text), call_id=None)
                case CallEnd():
                    pass

    def _call_delta(self, function: FunctionDelta, *, call_id: str | None) -> ChatDelta:
        call = ToolCallDelta(
            index=self._call,
            id=call_id,
            type=None if call_id is None else "function",
            function=function,
        )
        return ChatDelta(tool_calls=[call])


def whole_message(chunks: Iterable[ChatDelta]) -> ChatMessage:
    """The message that the chunks of a stream add up to."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, str, list[str]]] = []
    for chunk in chunks:
        content.append(chunk.content or "")
        reasoning.append(chunk.reasoning_content or "")
        for part in chunk.tool_calls or ():
            if part.id is not None and part.function.name is not None:
                calls.append((part.id, part.function.name, []))
            calls[-1][2].append(part.function.arguments)
    text = "".join(content)
    thought = "".join(reasoning) or None
    return ChatMessage(
        role="assistant",
        content=None if calls and not text else text,
        reasoning_content=thought,
        reasoning=thought,
        tool_calls=[
            ToolCall(
                id=call_id,
                type="function",
                function=CalledFunction(name=name, arguments="".join(arguments)),
            )
            for call_id, name, arguments in calls
        ]
        or None,
    )


def _joined(deltas: Iterable[Delta]) -> Iterator[Delta]:
    last: Delta | None = None
    for delta in deltas:
        both = _as_one(last, delta)
        if both is None and last is not None:
            yield last
        last = both or delta
    if last is not None:
        yield last


def _as_one(first: Delta | None, second: Delta) -> Delta | None:
    match first, second:
        case Reasoning(text=before), Reasoning(text=after):
            return Reasoning(text=before + after)
        case Content(text=before), Content(text=after):
            return Content(text=before + after)
        case Arguments(text=before), Arguments(text=after):
            return Arguments(text=before + after)
        case _:
            return None
