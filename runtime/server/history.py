"""A chat's messages as templates read them: text only, past calls and thoughts in the form the template knows."""

from typing import Any, Literal  # Any: arguments are whatever a tool takes

import msgspec

from firmtoken.runtime.dialects.schemas import NOT_JSON
from firmtoken.runtime.server.errors import InvalidBody, UnsupportedParameter
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.wire import Message, Part, PastCall
from firmtoken.schema.diagnostic import literal


def plain_message(message: Message, place: str, model: ServedModel) -> dict[str, object]:
    """Absent keys are left out, and OpenAI's `developer` is `system`."""
    plain: dict[str, object] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _text(message.content, f"{place}.content"),
    }
    if message.tool_calls:
        plain["tool_calls"] = _calls(message, f"{place}.tool_calls", model)
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
                f"`{where}.type`: `{literal(part.type)}` is not supported, only `text` is",
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


def _calls(message: Message, place: str, model: ServedModel) -> list[dict[str, object]]:
    if message.role != "assistant":
        raise InvalidBody(
            f"`{place}`: only an `assistant` calls tools", param=place, code="invalid_value"
        )
    if not model.takes_tools:
        raise UnsupportedParameter(
            f"`{place}`: this model's chat template has no place for tools", param=place
        )
    calls = message.tool_calls or ()
    form = model.dialect.past_arguments
    return [_call(call, f"{place}[{index}]", form) for index, call in enumerate(calls)]


def _call(call: PastCall, place: str, form: Literal["text", "mapping"]) -> dict[str, object]:
    arguments: object = call.function.arguments or {}
    if form == "mapping" and isinstance(arguments, str):
        arguments = _decoded(arguments, f"{place}.function.arguments")
    plain: dict[str, object] = {
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }
    return plain if call.id is None else plain | {"id": call.id}


def _decoded(arguments: str, place: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except NOT_JSON as error:
        raise InvalidBody(
            f"`{place}`: expected the JSON text of an object", param=place, code="invalid_value"
        ) from error
