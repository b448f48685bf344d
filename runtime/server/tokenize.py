"""POST /tokenize and /detokenize, in vLLM's shapes: the same template and tokenizer as serving."""

from litestar import post
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.types import ASGIApp

from firmtoken.runtime.server.errors import InvalidBody
from firmtoken.runtime.server.incoming import HttpRequest, read_request
from firmtoken.runtime.server.prompt import chat_prompt, of_text, template_variables
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.stream import json_response
from firmtoken.runtime.server.tools import read_tools
from firmtoken.runtime.server.wire import (
    Detokenized,
    DetokenizeRequest,
    Tokenized,
    TokenizeRequest,
)


@post("/tokenize", status_code=200)
async def tokenize(
    request: HttpRequest, service: NamedDependency[SkipValidation[Service]]
) -> ASGIApp:
    """Token ids of a text or of a chat; over-long ones are counted too, not refused."""
    incoming = await read_request(request, TokenizeRequest, service)
    body = incoming.body
    service.check_model(body.model)
    tokens = await _token_ids(body, service)
    tokenizer = service.model.tokenizer
    strings = (
        [tokenizer.token_string(token) for token in tokens] if body.return_token_strs else None
    )
    answer = Tokenized(
        count=len(tokens),
        max_model_len=service.plan.effective_context,
        tokens=tokens,
        token_strs=strings,
    )
    return json_response(answer, headers=incoming.headers)


@post("/detokenize", status_code=200)
async def detokenize(
    request: HttpRequest, service: NamedDependency[SkipValidation[Service]]
) -> ASGIApp:
    """The text of token ids, control tokens included."""
    incoming = await read_request(request, DetokenizeRequest, service)
    service.check_model(incoming.body.model)
    text = service.model.tokenizer.decode(incoming.body.tokens, skip_special_tokens=False)
    return json_response(Detokenized(prompt=text), headers=incoming.headers)


async def _token_ids(body: TokenizeRequest, service: Service) -> list[int]:
    model = service.model
    if body.messages is not None and body.prompt is None:
        prompt = await chat_prompt(
            model,
            body.messages,
            template_variables(body.chat_template_kwargs, body.reasoning_effort),
            tools=read_tools(body.tools, body.tool_choice, model),
            add_generation_prompt=body.add_generation_prompt is not False,
        )
        return prompt.token_ids
    if body.prompt is not None and body.messages is None:
        return await of_text(
            model.tokenizer.encode,
            body.prompt,
            add_special_tokens=body.add_special_tokens is not False,
        )
    raise InvalidBody(
        "`prompt`: expected either `prompt` or `messages`", param="prompt", code="invalid_value"
    )
