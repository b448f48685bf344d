"""One answer as it grows: tokens in, text for the client out, counts beside it."""

from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.runtime.dialects.dialect import Dialect
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

    def __init__(
        self, index: int, order: Order, tokenizer: Tokenizer, dialect: Callable[[], Dialect] | None
    ) -> None:
        self._order = order
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(order.stop_strings, keep_stop=order.keep_stop)
        self._dialect = None if dialect is None else dialect()
        self.index = index
        self.prompt_tokens = len(order.prompt)
        self.cached_tokens = 0
        self.output_tokens = 0
        """Tokens up to the stop, a stop token included; surplus ones after a stop string are not."""
        self.finish_reason: FinishReason | None = None

    @property
    def stopped(self) -> bool:
        """True once a stop string has ended the text: the engine need not go on."""
        return self._stops.matched

    def token(self, token_id: int) -> str:
        """Text that may be shown now."""
        self.output_tokens += 1
        if token_id in self._order.stop_token_ids and not self._order.keep_stop:
            return ""
        text = self._stops.feed(self._detokenizer.feed(token_id))
        return self._speak(text) + (self._end("stop") if self.stopped else "")

    def finish(self, reason: FinishReason) -> str:
        """The rest of the text, when the engine has ended the request."""
        text = self._stops.feed(self._detokenizer.finish())
        return self._speak(text + self._stops.finish()) + self._end(reason)

    def _speak(self, text: str) -> str:
        if self._dialect is None or not text:
            return text
        return "".join(delta.text for delta in self._dialect.feed(text))

    def _end(self, reason: FinishReason) -> str:
        # A stop string may be completed by the last character of all, after the engine's own reason is known.
        self.finish_reason = "stop" if self.stopped else reason
        if self._dialect is None:
            return ""
        return "".join(delta.text for delta in self._dialect.finish())
