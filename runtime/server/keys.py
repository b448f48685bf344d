"""API keys: who may use the server."""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from firmtoken.runtime.server.errors import InvalidKey

OPEN_PATHS = frozenset({"/health"})
"""What supervisors poll, who have no key."""


class KeysFault(Exception):
    """The file of keys cannot be used."""


def load_keys(path: Path) -> tuple[bytes, ...]:
    """Hashes of the keys in a file, one key a line; blank lines and lines that begin with `#` do not count."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KeysFault(f"{path}: cannot be read: {error}") from error
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        # An empty file must not mean that everyone may.
        raise KeysFault(f"{path}: holds no key")
    return tuple(_hash(key) for key in keys)


class KeyCheck(ASGIMiddleware):
    """Lets a request pass that carries a known key, as Bearer or as `x-api-key`."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self._hashes = tuple(hashes)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Raise `InvalidKey`, or go on."""
        if scope["path"] not in OPEN_PATHS and not self._known(_sent_key(scope)):
            raise InvalidKey(
                "the request needs an API key, as `Authorization: Bearer` or `x-api-key`"
            )
        await next_app(scope, receive, send)

    def _known(self, key: str) -> bool:
        # Hashes have one length and every one is compared: time says nothing about the keys.
        sent = _hash(key)
        matches = [hmac.compare_digest(sent, known) for known in self._hashes]
        return any(matches)


def _sent_key(scope: Scope) -> str:
    headers = Headers.from_scope(scope)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key", "").strip()


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
