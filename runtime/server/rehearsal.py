"""A first answer that nobody asked for: what Python loads at the first use of it is there before a client comes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from litestar.types import HTTPDisconnectEvent, Message

from firmtoken.runtime.server.errors import ApiError
from firmtoken.runtime.server.prompt import chat_prompt
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.runtime.server.stream import KEEP_ALIVE, EventStream
from firmtoken.runtime.server.wire import Message as ChatMessage

TEXT = "What does the name of this river mean?"


async def rehearse(model: ServedModel) -> None:
    """Renders, encodes, decodes and streams, to nobody.

    Streaming alone loads modules for 37 ms (2-core VM), which a first request waited for.
    """
    with suppress(ApiError):  # a template may refuse any chat; its clients are told
        prompt = await chat_prompt(
            model,
            [ChatMessage(role="user", content=TEXT)],
            {},
            tools=None,
            add_generation_prompt=True,
        )
        model.tokenizer.decode(prompt.token_ids, skip_special_tokens=True)
    over = asyncio.Event()
    stream = EventStream(_one_frame(over), headers={}, on_end=over.set)

    async def receive() -> HTTPDisconnectEvent:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        pass

    await stream.send_body(send, receive)


async def _one_frame(over: asyncio.Event) -> AsyncGenerator[bytes, None]:
    yield KEEP_ALIVE
    over.set()
