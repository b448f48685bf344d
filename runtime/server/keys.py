"""API keys: who may use the server."""

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from firmtoken.runtime.server.errors import InvalidKey
from firmtoken.runtime.server.key_file import read_keys

OPEN_PATHS = frozenset({"/health"})
"""What supervisors poll, who have no key."""


def load_keys(path: Path) -> tuple[bytes, ...]:
    """Hashes of the keys in a file; raises `KeysFault`."""
    return tuple(_hash(key) for key in read_keys(path))


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

    def _known(self, key: bytes) -> bool:
        # Hashes have one length and every one is compared: time says nothing about the keys.
        sent = _hash(key)
        matches = [hmac.compare_digest(sent, known) for known in self._hashes]
        return any(matches)


def _sent_key(scope: Scope) -> bytes:
    scheme, _, token = _header(scope, b"authorization").partition(b" ")
    if scheme.lower() == b"bearer":
        return token.strip()
    return _header(scope, b"x-api-key").strip()


def _header(scope: Scope, name: bytes) -> bytes:
    """As it was sent; litestar's own headers read bytes as Latin-1, and a key is UTF-8."""
    return next((value for key, value in scope["headers"] if key.lower() == name), b"")


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
