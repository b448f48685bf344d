"""The JSON that answers chat and completions, whole and as chunks of a stream."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What output tokens were spent on."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted; always with the cached part, or a hit cannot be seen."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function and what it is called with, as JSON text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an answer."""

    id: str
    type: str
    function: CalledFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The assistant's turn; its thought under both names that clients read."""

    role: str
    content: str | None
    """None where the turn is calls alone."""
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/chat/completions`."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The name comes once, whole; arguments grow."""

    arguments: str
    name: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Part of a call: id, type and name in its first one only, or clients join them."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a chunk adds; an empty `content` is sent with the role only."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: None
    finish_reason: FinishReason | None


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One frame of a chat stream; without choices it carries the usage."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class TextChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or its part of a chunk."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Completion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of `/v1/completions`, and each frame of its stream: OpenAI uses one object for both."""

    id: str
    object: str
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model, with its effective context under both names that clients read."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int
    context_length: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/v1/models`."""

    object: str
    data: list[ModelCard]


class LoadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far loading is; 0 of 0 when it cannot be said."""

    phase: str
    done: int
    total: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/health`."""

    status: Literal["ok", "unavailable"]
    state: str
    model: str
    effective_context: int
    running: int
    waiting: int
    progress: LoadProgress | None
    """While loading."""
    cause: str | None
    """Why the engine ended: of its death the first one."""
    restarts: int
    """Of the last minutes."""
