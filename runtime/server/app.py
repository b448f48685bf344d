"""The application: routes, the errors they answer with, and nothing that chooses."""

import logging
from collections.abc import Container, Sequence

from litestar import Litestar, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException

from firmtoken.runtime.server.chat import create_chat_completion
from firmtoken.runtime.server.completions import create_completion
from firmtoken.runtime.server.errors import ApiError, InternalError, NotFound, OtherHttp
from firmtoken.runtime.server.health import get_dump, get_health, get_plan, get_stats
from firmtoken.runtime.server.incoming import HttpRequest
from firmtoken.runtime.server.keys import KeyCheck
from firmtoken.runtime.server.models import get_model, list_models
from firmtoken.runtime.server.request_id import add_request_id, request_id_of
from firmtoken.runtime.server.service import Service
from firmtoken.runtime.server.stream import ClientGone
from firmtoken.runtime.server.tokenize import detokenize, tokenize
from firmtoken.schema.diagnostic import printable

MAX_BODY_BYTES = 64 * 2**20
"""Agents send long histories: litestar's own 10 MB is too little for a prompt of a million tokens."""

ROUTES = (
    create_chat_completion,
    create_completion,
    list_models,
    get_model,
    tokenize,
    detokenize,
    get_health,
    get_plan,
    get_stats,
    get_dump,
)


def create_app(service: Service, *, key_hashes: Sequence[bytes] = ()) -> Litestar:
    """The server of one engine; `key_hashes` empty lets everyone in."""
    errors = _Errors(service.log)
    return Litestar(
        ROUTES,
        dependencies={"service": Provide(lambda: service, sync_to_thread=False)},
        middleware=[KeyCheck(key_hashes)] if key_hashes else [],
        exception_handlers={
            ApiError: errors.refused,
            HTTPException: errors.refused_by_framework,
            ClientGone: errors.nobody_left,
            Exception: errors.unexpected,
        },
        before_send=[add_request_id],
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        openapi_config=None,
    )


class _Errors:
    """Exceptions to answers, each with one line in the log."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def refused(self, request: HttpRequest, error: ApiError) -> Response[bytes]:
        """What our own code refuses."""
        self._log.info(
            "%s refused: %d %s: %s",
            request_id_of(request.scope),
            error.status,
            error.code,
            printable(error.message),  # it may repeat a stranger's text
        )
        return _response(error)

    def refused_by_framework(self, request: HttpRequest, error: HTTPException) -> Response[bytes]:
        """The framework's own refusals in the shape that SDKs read."""
        response = self.refused(request, _named(request, error))
        response.headers.update(error.headers or {})
        return response

    def nobody_left(self, request: HttpRequest, error: ClientGone) -> Response[bytes]:
        """499, which nobody reads: the client has left."""
        return Response(b"", status_code=499, media_type="application/json")

    def unexpected(self, request: HttpRequest, error: Exception) -> Response[bytes]:
        """Our bugs: the stack goes to the log, a generic sentence to the client."""
        name = request_id_of(request.scope)
        self._log.error("%s failed", name, exc_info=error)
        return _response(InternalError(f"the server failed, its log has more: {name}"))


def _named(request: HttpRequest, error: HTTPException) -> ApiError:
    method, path = request.scope["method"], request.scope["path"]
    match error.status_code:
        case 404:
            known = {route.path for route in request.app.routes}
            return NotFound(f"No such route: {method} {path}{_other_base(path, known)}")
        case 405:
            return OtherHttp(f"{path} does not take {method}", status=405, code="not_allowed")
        case 413:
            return OtherHttp(
                f"the body has more than {MAX_BODY_BYTES} bytes",
                status=413,
                code="request_too_large",
            )
        case status if status < 500:
            return OtherHttp(error.detail, status=status, code="invalid_request")
        case _:
            return InternalError("the server failed")


def _other_base(path: str, known: Container[str]) -> str:
    """What mends a client whose base URL lacks `/v1`, or has it twice; nothing for other paths."""
    meant = next((one for one in (f"/v1{path}", path.removeprefix("/v1")) if one in known), None)
    return f"; `{meant}` is there: the client's base URL must end in one `/v1`" if meant else ""


def _response(error: ApiError) -> Response[bytes]:
    return Response(
        error.body(),
        status_code=error.status,
        headers=error.headers(),
        media_type="application/json",
    )
