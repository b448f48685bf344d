"""One answer as it grows: tokens in, deltas for the client out, counts beside it."""

from collections.abc import Iterator
from dataclasses import dataclass

from firmtoken.runtime.dialects.dialect import CallEnd, Content, Delta
from firmtoken.runtime.dialects.turn import Turn
from firmtoken.runtime.engine.messages import Sampling
from firmtoken.runtime.server.detokenizer import Detokenizer
from firmtoken.runtime.server.reply import FinishReason
from firmtoken.runtime.server.stop_strings import StopStrings
from firmtoken.runtime.server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One prompt and how to answer it, all defaults filled in."""

    prompt: tuple[int, ...]
    asked_output: int | None
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    stop_strings: tuple[str, ...]
    keep_stop: bool
    """`include_stop_str_in_output`: the stop string or token is part of the text."""
    param: str
    """The request's field that holds the prompt, for errors about its length."""


class Answer:
    """The text side of one engine request."""

    def __init__(self, index: int, order: Order, tokenizer: Tokenizer, turn: Turn | None) -> None:
        """Without a `turn` all text is content."""
        self._order = order
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(order.stop_strings, keep_stop=order.keep_stop)
        self._turn = turn
        self._has_calls = False
        self.index = index
        self.prompt_tokens = len(order.prompt)
        self.cached_tokens = 0
        self.output_tokens = 0
        """Tokens up to the stop, a stop token included; surplus ones after a stop string are not."""
        self.reasoning_tokens = 0
        """Those of them that were read inside the thought, its end tag included."""
        self.finish_reason: FinishReason | None = None

    @property
    def stopped(self) -> bool:
        """True once the text has ended, by a stop string or its only call: the engine need not go on."""
        return self._stops.matched or (self._turn is not None and self._turn.ended)

    def token(self, token_id: int) -> tuple[Delta, ...]:
        """What may be shown now."""
        self.output_tokens += 1
        if self._turn is not None and self._turn.in_thought:
            self.reasoning_tokens += 1
        if token_id in self._order.stop_token_ids and not self._order.keep_stop:
            return ()
        deltas = self._read(self._stops.feed(self._detokenizer.feed(token_id)))
        return deltas + self._end("stop") if self.stopped else deltas

    def finish(self, reason: FinishReason) -> tuple[Delta, ...]:
        """The rest, when the engine has ended the request."""
        text = self._stops.feed(self._detokenizer.finish())
        return self._read(text + self._stops.finish()) + self._end(reason)

    def _read(self, text: str) -> tuple[Delta, ...]:
        if not text:
            return ()
        if self._turn is None:
            return (Content(text=text),)
        return self._noted(self._turn.feed(text))

    def _end(self, reason: FinishReason) -> tuple[Delta, ...]:
        rest = () if self._turn is None else self._noted(self._turn.finish())
        # A stop string may be completed by the last character of all, after the engine's own reason is known.
        if self.stopped:
            reason = "stop"
        self.finish_reason = "tool_calls" if reason == "stop" and self._has_calls else reason
        return rest

    def _noted(self, deltas: Iterator[Delta]) -> tuple[Delta, ...]:
        noted = tuple(deltas)
        self._has_calls = self._has_calls or any(isinstance(delta, CallEnd) for delta in noted)
        return noted
