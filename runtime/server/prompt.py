"""A chat's messages to the prompt's token ids, by the model's own template."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from firmtoken.runtime.dialects.chatml import TemplateRefused
from firmtoken.runtime.server.errors import (
    InternalError,
    InvalidBody,
    InvalidMessages,
    UnsupportedParameter,
)
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.wire import Message, Part

TEXT_S = 60.0
"""1.3 million tokens took 6.8 s (2-core VM, busy; the embedded tokenizer)."""

P = ParamSpec("P")
T = TypeVar("T")

RESERVED = ("messages", "add_generation_prompt", "tools", "documents")


async def chat_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    variables: Mapping[str, object],
    *,
    add_generation_prompt: bool,
) -> list[int]:
    """Token ids of the rendered chat; rendering and encoding run in a thread, both can take long."""
    for name in RESERVED:
        if name in variables:
            param = f"chat_template_kwargs.{name}"
            raise UnsupportedParameter(f"`{param}` cannot be set there", param=param)
    plain = [_plain(message, f"messages[{index}]") for index, message in enumerate(messages)]
    return await of_text(_render, model, plain, variables, add_generation_prompt)


async def of_text(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What a thread makes of text, or `InternalError`: a template that loops must not keep its client for ever."""
    try:
        async with asyncio.timeout(TEXT_S):
            return await asyncio.to_thread(work, *arguments, **named)
    except TimeoutError as error:
        raise InternalError(f"making tokens of the text took longer than {TEXT_S:g} s") from error


def _render(
    model: ServedModel,
    messages: Sequence[Mapping[str, object]],
    variables: Mapping[str, object],
    add_generation_prompt: bool,
) -> list[int]:
    if model.template is None:
        raise InvalidMessages("this model has no chat template: use /v1/completions")
    try:
        text = model.template.render(
            messages, add_generation_prompt=add_generation_prompt, variables=variables
        )
    except TemplateRefused as error:
        raise InvalidMessages(str(error), param="messages") from error
    token_ids = model.tokenizer.encode(text)
    if not token_ids:
        raise InvalidMessages(
            "`messages`: the chat template makes an empty prompt of them", param="messages"
        )
    return token_ids


def _plain(message: Message, place: str) -> dict[str, object]:
    """The message as templates read it: text only, absent keys left out, OpenAI's `developer` as `system`."""
    if message.tool_calls:
        raise UnsupportedParameter(
            f"`{place}.tool_calls` is not supported here", param=f"{place}.tool_calls"
        )
    plain: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{place}.content"),
    }
    reasoning = message.reasoning_content or message.reasoning
    for name, value in (
        ("name", message.name),
        ("reasoning_content", reasoning),
        ("tool_call_id", message.tool_call_id),
    ):
        if value is not None:
            plain[name] = value
    return plain


def _text(content: str | list[Part] | None, place: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        where = f"{place}[{index}]"
        if part.type not in ("text", "input_text", "output_text"):
            raise UnsupportedParameter(
                f"`{where}.type`: `{part.type}` is not supported, only `text` is",
                param=f"{where}.type",
            )
        if part.text is None:
            raise InvalidBody(
                f"`{where}.text`: required, and missing",
                param=f"{where}.text",
                code="invalid_value",
            )
        texts.append(part.text)
    return "".join(texts)
