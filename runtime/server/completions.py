"""POST /v1/completions."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from litestar import post
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.types import ASGIApp

from firmtoken.runtime.server.admission import check_prompts
from firmtoken.runtime.server.errors import InvalidBody
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
from firmtoken.runtime.server.prompt import of_text
from firmtoken.runtime.server.reply import Completion, TextChoice, Usage
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.stream import (
    DONE,
    KEEP_ALIVE,
    collected,
    data_frame,
    streamed,
)
from firmtoken.runtime.server.usage import usage_of
from firmtoken.runtime.server.wire import CompletionRequest


@post("/v1/completions", status_code=200)
async def create_completion(
    request: HttpRequest, service: NamedDependency[SkipValidation[Service]]
) -> ASGIApp:
    """Continue one or several prompts, as one body or as a stream of chunks."""
    incoming = await read_request(request, CompletionRequest, service)
    body = incoming.body
    service.check_model(body.model)
    prompts = await of_text(_prompts, body.prompt, service)
    orders = [service.order(body, ids, stops=stops_of(body), param="prompt") for ids in prompts]
    name = f"cmpl-{incoming.request_id}"
    generation = service.begin(name, orders, turn=None)
    if body.stream:
        return streamed(
            _frames(generation, incoming, service),
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


def _prompts(prompt: str | list[str | int | list[int]], service: Service) -> list[list[int]]:
    """Token ids of each prompt; a list of numbers is one prompt."""
    items = [prompt] if isinstance(prompt, str) else prompt
    if not items:
        raise InvalidBody("`prompt`: empty", param="prompt", code="invalid_value")
    texts = [item for item in items if isinstance(item, str)]
    ids = [item for item in items if isinstance(item, int)]
    lists = [item for item in items if isinstance(item, list)]
    if len(items) not in (len(texts), len(ids), len(lists)):
        raise InvalidBody(
            "`prompt`: expected texts, token ids or lists of token ids, got a mixture",
            param="prompt",
            code="invalid_value",
        )
    check_prompts(len(texts) or len(lists) or 1, service.plan)
    prompts = [service.model.tokenizer.encode(text) for text in texts] or lists or [ids]
    for token_ids in prompts:
        _check(token_ids, service.plan.vocab_size)
    return prompts


def _check(token_ids: list[int], vocab_size: int) -> None:
    if not token_ids:
        raise InvalidBody("`prompt`: empty", param="prompt", code="invalid_value")
    if max(token_ids) >= vocab_size:
        raise InvalidBody(
            f"`prompt`: token id {max(token_ids)}, but the vocabulary has {vocab_size}",
            param="prompt",
            code="invalid_value",
        )


async def _collect(generation: Generation, service: Service) -> Completion:
    texts: list[list[str]] = [[] for _ in generation.answers]
    async with aclosing(generation.pieces(silence_s=NEVER_S)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Piece):
                texts[piece.answer.index].append(piece.text)
    choices = [
        TextChoice(
            index=answer.index,
            text="".join(text),
            logprobs=None,
            finish_reason=answer.finish_reason,
        )
        for answer, text in zip(generation.answers, texts, strict=True)
    ]
    usage = usage_of(generation.answers)
    return _completion(generation, service, service.now(), choices, usage)


async def _frames(
    generation: Generation, incoming: Incoming[CompletionRequest], service: Service
) -> AsyncGenerator[bytes, None]:
    """A chunk for each piece of text, each answer's last one with its finish reason."""
    created = service.now()
    running_usage = wants_running_usage(incoming.body)
    async with aclosing(generation.pieces(silence_s=silence_of(incoming.body, service))) as pieces:
        async for piece in pieces:
            match piece:
                case Silence():
                    yield KEEP_ALIVE
                case Admission():
                    pass
                case Piece() if piece.text or piece.answer.finish_reason is not None:
                    choice = TextChoice(
                        index=piece.answer.index,
                        text=piece.text,
                        logprobs=None,
                        finish_reason=piece.answer.finish_reason,
                    )
                    usage = usage_of(generation.answers) if running_usage else None
                    yield data_frame(_completion(generation, service, created, [choice], usage))
    if wants_usage(incoming.body):
        usage = usage_of(generation.answers)
        yield data_frame(_completion(generation, service, created, [], usage))
    yield DONE


def _completion(
    generation: Generation,
    service: Service,
    created: int,
    choices: list[TextChoice],
    usage: Usage | None,
) -> Completion:
    return Completion(
        id=generation.name,
        object="text_completion",
        created=created,
        model=service.plan.model,
        choices=choices,
        usage=usage,
    )
