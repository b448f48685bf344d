"""The JSON of the OpenAI routes: what is read, what is refused by name, what is written."""

import json
import re
from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    TypeVar,
)  # Any: `chat_template_kwargs` are whatever the template takes, tools whatever their clients wrote

import msgspec
from msgspec import Meta

from firmtoken.runtime.dialects.schemas import NOT_JSON
from firmtoken.runtime.server.errors import InvalidBody, UnsupportedParameter

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024

Count = Annotated[int, Meta(ge=1)]
"""Without an upper end: what is more than the context leaves is lowered, not refused (D3)."""
Temperature = Annotated[float, Meta(ge=0, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=2**31)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStringList = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Body = TypeVar("Body", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chat and completions share; null is the same as absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    """The newer name; where both are given it holds."""
    temperature: Temperature | None = None
    """0 is arg-max."""
    top_p: Share | None = None
    """0 keeps the likeliest token only."""
    top_k: TopK | None = None
    """-1 and 0 keep all."""
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | StopStringList | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    sse_ping_interval: Annotated[float, Meta(ge=-1, le=3600)] | None = None
    """Seconds of silence before a comment is sent; 0 or less: never. llama.cpp's name."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message; only `text` can be served."""

    type: str
    text: str | None = None


class PastFunction(msgspec.Struct, frozen=True, kw_only=True):
    """What was called; arguments are JSON text of an object, or the object itself."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str | dict[str, Any] | None = None


class PastCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an earlier turn."""

    function: PastFunction
    id: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn, in any role."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    """False: the answer ends with its first call."""


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `/v1/completions`; `prompt` is a text, several, token ids, or several lists of them."""

    prompt: str | list[str | TokenId | list[TokenId]]


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/tokenize`: a text or a chat, as in vLLM."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `/detokenize`."""

    tokens: list[TokenId]
    model: str | None = None


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/detokenize`."""

    prompt: str


IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "verbosity",
        "cache_salt",
        "priority",
        "session_id",
        "client_metadata",
        "request_id",
    }
)
"""Fields that name the client or its wishes about storage: the answer is the same without them."""

_OFF: tuple[object, ...] = (None, False)
_NONE: tuple[object, ...] = (None, [], {}, "")
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "num_beams": (None, 1),
    "use_beam_search": _OFF,
    "tools": _NONE,
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": _NONE,
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": _NONE,
    "guided_json": _NONE,
    "guided_regex": _NONE,
    "guided_choice": _NONE,
    "guided_grammar": _NONE,
    "json_schema": _NONE,
    "grammar": _NONE,
    "regex": _NONE,
    "ebnf": _NONE,
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "repeat_penalty": (None, 1),
    "length_penalty": (None, 1),
    "typical_p": (None, 1),
    "mirostat": (None, 0),
    "dry_multiplier": (None, 0),
    "logit_bias": _NONE,
    "bad_words": _NONE,
    "allowed_token_ids": (None,),
    "logprobs": _OFF,
    "top_logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "return_token_ids": _OFF,
    "echo": _OFF,
    "suffix": (None, ""),
    "min_tokens": (None, 0),
    "stop_regex": _NONE,
    "truncate_prompt_tokens": (None,),
    "reasoning_effort": (None,),
    "reasoning": _NONE,
    "thinking": _NONE,
    "thinking_token_budget": (None,),
    "thinking_budget_tokens": (None,),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
    "documents": _NONE,
    "chat_template": (None,),
    "add_generation_prompt": (None, True),
    "continue_final_message": _OFF,
    "skip_special_tokens": (None, True),
    "n_predict": (None,),
}
"""Fields of other servers that would change the answer, with the values at which they would not."""


def read_body(body: bytes, kind: type[Body]) -> tuple[Body, tuple[str, ...]]:
    """The request and the names of fields nobody here knows; the error names the field."""
    if not body.strip():
        raise InvalidBody("the body is empty: send a JSON object", code="invalid_json")
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise InvalidBody(f"expected a JSON object: {error}", code="invalid_json") from error
    except NOT_JSON as error:
        raise _not_json(body, error) from error
    unknown = []
    for name in fields.keys() - {field.encode_name for field in msgspec.structs.fields(kind)}:
        if name in NEUTRAL:
            _refuse_unless_neutral(name, fields[name], body)
        elif name not in IGNORED:
            unknown.append(name)
    try:
        return msgspec.json.decode(body, type=kind), tuple(sorted(unknown))
    except msgspec.ValidationError as error:
        message, param = _name_the_field(str(error))
        raise InvalidBody(message, param=param, code="invalid_value") from error
    except NOT_JSON as error:
        raise _not_json(body, error) from error


def _refuse_unless_neutral(name: str, raw: msgspec.Raw, body: bytes) -> None:
    try:
        value = msgspec.json.decode(raw)
    except NOT_JSON as error:
        raise _not_json(body, error) from error
    if not any(_same(value, neutral) for neutral in NEUTRAL[name]):
        raise UnsupportedParameter(
            f"`{name}` is not supported here, leave it out or at its default", param=name
        )


def _same(value: object, neutral: object) -> bool:
    # `logprobs: 0` asks for something, `logprobs: false` does not; Python thinks them equal.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _not_json(body: bytes, error: Exception) -> InvalidBody:
    if isinstance(error, RecursionError):
        return InvalidBody("the body is not JSON we read: nested too deeply", code="invalid_json")
    place = _broken_text(body)
    if place is None:
        return InvalidBody(f"the body is not JSON: {error}", code="invalid_json")
    return InvalidBody(
        f"`{place}`: the text is not Unicode: half a surrogate pair, or bytes that are not UTF-8",
        param=place,
        code="invalid_json",
    )


def _broken_text(body: bytes) -> str | None:
    """The first field whose text has no UTF-8: msgspec says of such a body only that it is malformed."""
    try:
        # Both slips become lone surrogates here: bytes by the decoder, escapes by the standard library's reader.
        rest = [("", json.loads(body.decode("utf-8", "surrogateescape")))]
    except (ValueError, RecursionError):
        return None
    while rest:
        place, value = rest.pop()
        if isinstance(value, str) and not _is_text(value):
            return place
        if isinstance(value, dict):
            inner = [(f"{place}.{name}".lstrip("."), of) for name, of in value.items()]
            rest += reversed([each for each in inner if _is_text(each[0])])
        elif isinstance(value, list):
            rest += reversed([(f"{place}[{index}]", of) for index, of in enumerate(value)])
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_the_field(message: str) -> tuple[str, str | None]:
    """msgspec's sentence with our name of the field in front: `messages[0].role`."""
    if missing := re.fullmatch(
        r"Object missing required field `(\w+)`(?: - at `\$\.?(.*)`)?", message
    ):
        name, place = missing[1], missing[2]
        param = f"{place}.{name}" if place else name
        return f"`{param}`: required, and missing", param
    if placed := re.fullmatch(r"(.*) - at `\$\.?(.*)`", message, re.DOTALL):
        sentence = placed[1][:1].lower() + placed[1][1:]
        return f"`{placed[2]}`: {sentence}", placed[2]
    return message, None
