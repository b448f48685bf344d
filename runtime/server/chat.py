"""POST /v1/chat/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from litestar import post
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.types import ASGIApp

from firmtoken.runtime.dialects.turn import Turn
from firmtoken.runtime.server.chat_deltas import ChatDeltas, whole_message
from firmtoken.runtime.server.generation import Admission, Generation, Piece, Silence
from firmtoken.runtime.server.incoming import (
    NEVER_S,
    HttpRequest,
    Incoming,
    read_request,
    silence_of,
    stops_of,
    wants_running_usage,
    wants_usage,
)
from firmtoken.runtime.server.prompt import chat_prompt, template_variables
from firmtoken.runtime.server.reply import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    FinishReason,
    Usage,
)
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.stream import (
    DONE,
    KEEP_ALIVE,
    collected,
    data_frame,
    streamed,
)
from firmtoken.runtime.server.tools import read_tools
from firmtoken.runtime.server.usage import usage_of
from firmtoken.runtime.server.wire import ChatRequest

PREFIX = "chatcmpl-"


@post("/v1/chat/completions", status_code=200)
async def create_chat_completion(
    request: HttpRequest, service: NamedDependency[SkipValidation[Service]]
) -> ASGIApp:
    """Answer a chat, as one body or as a stream of chunks."""
    incoming = await read_request(request, ChatRequest, service)
    body = incoming.body
    service.check_model(body.model)
    tools = read_tools(body.tools, body.tool_choice, service.model)
    prompt = await chat_prompt(
        service.model,
        body.messages,
        template_variables(body.chat_template_kwargs, body.reasoning_effort),
        tools=tools,
        add_generation_prompt=True,
    )
    order = service.order(body, prompt.token_ids, stops=stops_of(body), param="messages")
    turn = partial(
        Turn,
        service.model.dialect,
        in_thought=prompt.in_thought,
        tools=None if tools is None else tools.schemas,
        one_call=body.parallel_tool_calls is False,
    )
    generation = service.begin(f"{PREFIX}{incoming.request_id}", [order], turn=turn)
    if body.stream:
        return streamed(
            _ChatFrames(generation, incoming, service).all(),
            headers=incoming.headers,
            on_end=generation.close,
            log=service.log,
        )
    return await collected(
        _collect(generation, service),
        request.receive,
        headers=incoming.headers,
        on_end=generation.close,
    )


async def _collect(generation: Generation, service: Service) -> ChatCompletion:
    deltas = ChatDeltas(_call_ids(generation))
    chunks: list[ChatDelta] = []
    async with aclosing(generation.pieces(silence_s=NEVER_S)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Piece):
                chunks += deltas.of(piece.deltas)
    answer = generation.answers[0]
    assert answer.finish_reason is not None
    return ChatCompletion(
        id=generation.name,
        object="chat.completion",
        created=service.now(),
        model=service.plan.model,
        choices=[
            ChatChoice(
                index=0,
                message=whole_message(chunks),
                logprobs=None,
                finish_reason=answer.finish_reason,
            )
        ],
        usage=usage_of(generation.answers),
    )


def _call_ids(generation: Generation) -> str:
    """How the ids of this answer's calls begin: as unlike any other's as the request's own id."""
    return f"call_{generation.name.removeprefix(PREFIX)}"


class _ChatFrames:
    """The chunks of one stream: role, thought, text, calls, finish reason, usage if asked for, end mark."""

    def __init__(
        self, generation: Generation, incoming: Incoming[ChatRequest], service: Service
    ) -> None:
        self._generation = generation
        self._created = service.now()
        self._model = service.plan.model
        self._silence_s = silence_of(incoming.body, service)
        self._usage_at_end = wants_usage(incoming.body)
        self._running_usage = wants_running_usage(incoming.body)
        self._opened = False
        self._deltas = ChatDeltas(_call_ids(generation))

    async def all(self) -> AsyncGenerator[bytes, None]:
        """Every frame, in order."""
        async with aclosing(self._generation.pieces(silence_s=self._silence_s)) as pieces:
            async for piece in pieces:
                if frames := self._frames(piece):
                    yield frames
        if self._usage_at_end:
            yield data_frame(self._chunk([], usage=usage_of(self._generation.answers)))
        yield DONE

    def _frames(self, piece: Piece | Admission | Silence) -> bytes:
        match piece:
            case Silence():
                return KEEP_ALIVE
            case Admission():
                return self._open()
            case Piece():
                return self._open() + self._gained(piece)

    def _open(self) -> bytes:
        """The role, once: sent at admission, so that a client sees its request was taken."""
        if self._opened:
            return b""
        self._opened = True
        return self._delta(ChatDelta(role="assistant", content=""), finish_reason=None)

    def _gained(self, piece: Piece) -> bytes:
        frames = b""
        for delta in self._deltas.of(piece.deltas):
            frames += self._delta(delta, finish_reason=None)
        if piece.answer.finish_reason is not None:
            frames += self._delta(ChatDelta(), finish_reason=piece.answer.finish_reason)
        return frames

    def _delta(self, delta: ChatDelta, *, finish_reason: FinishReason | None) -> bytes:
        choice = ChatChunkChoice(index=0, delta=delta, logprobs=None, finish_reason=finish_reason)
        usage = usage_of(self._generation.answers) if self._running_usage else None
        return data_frame(self._chunk([choice], usage=usage))

    def _chunk(self, choices: list[ChatChunkChoice], *, usage: Usage | None) -> ChatChunk:
        return ChatChunk(
            id=self._generation.name,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
        )
