"""One id per HTTP request, on every answer and in every log line about it."""

import uuid

from litestar.datastructures import MutableScopeHeaders
from litestar.types import Message, Scope

KEY = "ft_request_id"


def request_id_of(scope: Scope) -> str:
    """The id; made when first asked for."""
    return str(scope["state"].setdefault(KEY, uuid.uuid4().hex[:24]))


async def add_request_id(message: Message, scope: Scope) -> None:
    """Litestar's `before_send` hook: `x-request-id`, which SDKs show with an error."""
    if message["type"] == "http.response.start":
        MutableScopeHeaders.from_message(message)["x-request-id"] = request_id_of(scope)
