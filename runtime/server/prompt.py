"""A chat's messages to the prompt's token ids, by the model's own template."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from firmtoken.runtime.dialects.chatml import TemplateRefused
from firmtoken.runtime.dialects.thoughts import opens_thought
from firmtoken.runtime.server.errors import InternalError, InvalidMessages, UnsupportedParameter
from firmtoken.runtime.server.history import plain_message
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.tools import Tools
from firmtoken.runtime.server.wire import Message
from firmtoken.schema.diagnostic import literal

TEXT_S = 60.0
"""1.3 million tokens took 6.8 s (2-core VM, busy; the embedded tokenizer)."""

P = ParamSpec("P")
T = TypeVar("T")

RESERVED = ("messages", "add_generation_prompt", "tools", "documents")
THINKING = "enable_thinking"
"""The name that all templates with such a switch give it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """What the model reads."""

    token_ids: list[int]
    in_thought: bool
    """The answer begins inside a thought: the template has opened it."""


def template_variables(
    kwargs: Mapping[str, object] | None, effort: str | None
) -> Mapping[str, object]:
    """The request's `chat_template_kwargs`, with `reasoning_effort: none` as the switch that templates know.

    Raises `UnsupportedParameter` for any other effort, and for both ways said against each other.
    """
    variables = dict(kwargs or {})
    if effort is None:
        return variables
    if effort != "none":
        raise UnsupportedParameter(
            f"`reasoning_effort`: `{literal(effort)}` cannot be done here: `none` asks for no thought, without"
            " the field the model thinks as its template has it",
            param="reasoning_effort",
        )
    if variables.get(THINKING, False) is not False:
        raise UnsupportedParameter(
            f"`reasoning_effort`: `none`, but `chat_template_kwargs.{THINKING}` asks for thinking",
            param="reasoning_effort",
        )
    return variables | {THINKING: False}


async def chat_prompt(
    model: ServedModel,
    messages: Sequence[Message],
    variables: Mapping[str, object],
    *,
    tools: Tools | None,
    add_generation_prompt: bool,
) -> ChatPrompt:
    """The rendered chat; rendering and encoding run in a thread, both can take long."""
    for name in RESERVED:
        if name in variables:
            param = f"chat_template_kwargs.{name}"
            raise UnsupportedParameter(f"`{param}` cannot be set there", param=param)
    plain = [
        plain_message(message, f"messages[{index}]", model)
        for index, message in enumerate(messages)
    ]
    return await of_text(_render, model, plain, variables, tools, add_generation_prompt)


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
    tools: Tools | None,
    add_generation_prompt: bool,
) -> ChatPrompt:
    try:
        text = model.template.render(
            messages,
            tools=None if tools is None else tools.definitions,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
    except TemplateRefused as error:
        raise InvalidMessages(str(error), param="messages") from error
    token_ids = model.tokenizer.encode(text)
    if not token_ids:
        raise InvalidMessages(
            "`messages`: the chat template makes an empty prompt of them", param="messages"
        )
    in_thought = opens_thought(text)
    if in_thought and variables.get(THINKING) is False:
        raise UnsupportedParameter(
            "this model cannot answer without thinking: its chat template opens a thought all the same",
            param=f"chat_template_kwargs.{THINKING}",
        )
    return ChatPrompt(token_ids=token_ids, in_thought=in_thought)
