"""The answers to one HTTP request: engine events become pieces of them; every end is logged and cleaned up once."""

import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from firmtoken.runtime.dialects.dialect import Content, Delta
from firmtoken.runtime.engine.messages import Admitted, Done
from firmtoken.runtime.server.answer import Answer
from firmtoken.runtime.server.errors import ApiError, Draining, InternalError
from firmtoken.runtime.server.session import Event, Session, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one answer gained; its counts and finish reason are the answer's at this moment."""

    answer: Answer
    deltas: tuple[Delta, ...]

    @property
    def text(self) -> str:
        """The content alone."""
        return "".join(delta.text for delta in self.deltas if isinstance(delta, Content))

    @property
    def shows(self) -> bool:
        """Whether a client sees anything of it."""
        return bool(self.deltas) or self.answer.finish_reason is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """An answer's request has left the queue."""

    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Nothing that can be shown came for as long as the client may be left waiting."""


class Generation:
    """Owns the session of one HTTP request; `close` must be called, however the request ends."""

    def __init__(
        self,
        name: str,
        session: Session,
        answers: dict[int, Answer],
        *,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.answers = tuple(answers.values())
        self._session = session
        self._by_id = answers
        self._log = log
        self._clock = clock
        self._begun_at = clock()
        self._closed = False
        self._failure = "client closed"

    async def pieces(
        self, *, silence_s: float
    ) -> AsyncGenerator[Piece | Admission | Silence, None]:
        """What happens to the answers, until all have ended; raises `ApiError` if the engine fails them."""
        shown_at = self._clock()
        while any(answer.finish_reason is None for answer in self.answers):
            try:
                events = await self._session.events(timeout_s=silence_s)
            except TimeoutError:
                shown_at = self._clock()
                yield Silence()
                continue
            except ApiError as error:
                self._failure = error.message
                raise
            for event in events:
                answer = self._by_id[event.request_id]
                if answer.finish_reason is not None:
                    continue
                gained = self._take(event, answer)
                yield gained
                # Tokens may come and all be held back, as those of a long value in a tool call.
                if isinstance(gained, Admission) or gained.shows:
                    shown_at = self._clock()
                elif self._clock() - shown_at >= silence_s:
                    shown_at = self._clock()
                    yield Silence()

    def close(self) -> None:
        """Abort what still runs and log how each answer ended; the second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._session.close()
        milliseconds = 1000 * (self._clock() - self._begun_at)
        for answer in self.answers:
            self._log.info(
                "%s ended: %s, %d prompt tokens (%d cached), %d output tokens, %.0f ms",
                self.name,
                answer.finish_reason or self._failure,
                answer.prompt_tokens,
                answer.cached_tokens,
                answer.output_tokens,
                milliseconds,
            )

    def _take(self, event: Event, answer: Answer) -> Piece | Admission:
        match event:
            case Token():
                deltas = answer.token(event.token_id)
                if answer.stopped:
                    self._session.abort(event.request_id)
                return Piece(answer=answer, deltas=deltas)
            case Admitted():
                if not event.resumed:
                    # A resumed request finds its own pages: no saving of the client's.
                    answer.cached_tokens = event.cached_tokens
                self._log.info(
                    "%s %s: %d cached tokens, %d pages, %d still wait",
                    self.name,
                    "resumed" if event.resumed else "admitted",
                    event.cached_tokens,
                    event.pages,
                    event.waiting,
                )
                return Admission(answer=answer)
            case Done():
                return Piece(answer=answer, deltas=self._finish(event, answer))

    def _finish(self, done: Done, answer: Answer) -> tuple[Delta, ...]:
        match done.reason:
            case "stop" | "length":
                answer.cached_tokens = done.cached_tokens
                return answer.finish(done.reason)
            case "abort":
                self._failure = "aborted by the engine"
                raise Draining("the server is shutting down")
            case "error":
                self._failure = done.message
                raise InternalError(f"the engine gave this request up: {done.message}")
