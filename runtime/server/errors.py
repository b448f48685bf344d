"""What a client is told when it does not get what it asked for.

ApiError
├── InvalidBody              400  not JSON, a field of the wrong type or out of range
├── UnsupportedParameter     400  a field that would change the answer, and cannot
├── InvalidMessages          400  the chat template refused the messages
├── ContextLengthExceeded    400
├── InvalidKey               401
├── NotFound                 404  a route
├── ModelNotFound            404
├── OtherHttp                405, 408, 413, ...
├── QueueFull                429
├── InternalError            500
└── Unavailable
    ├── ModelLoading         503
    ├── Draining             503
    ├── EngineRestarting     503
    └── EngineDead           503  also what requests are told that an engine took with it
        └── EngineLost       503  one that had not begun
"""

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The object that openai-python reads; a flat body or a bare string loses the message."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of every error, and of an error frame in a stream."""

    error: ErrorDetail


class ApiError(Exception):
    """Root of this tree; the class says status, type and code."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    retry = False
    """Whether an SDK should try the same request again."""
    retry_after_s: int | None = None

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """JSON of the error."""
        detail = ErrorDetail(message=self.message, type=self.type, param=self.param, code=self.code)
        return msgspec.json.encode(ErrorBody(error=detail))

    def headers(self) -> dict[str, str]:
        """What SDKs obey; without `x-should-retry` they retry every 5xx twice."""
        headers = {} if self.status < 429 else {"x-should-retry": str(self.retry).lower()}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        return headers


class InvalidBody(ApiError):
    """The body is not what the route takes."""

    def __init__(self, message: str, *, param: str | None = None, code: str) -> None:
        super().__init__(message, param=param)
        self.code = code


class UnsupportedParameter(ApiError):
    """Refused by name, because ignoring it would change what the answer means."""

    code = "unsupported_parameter"


class InvalidMessages(ApiError):
    """The template's own sentence."""

    code = "invalid_messages"


class ContextLengthExceeded(ApiError):
    """No engine state could ever hold this request (D3)."""

    code = "context_length_exceeded"


class InvalidKey(ApiError):
    """No key, or one that is not in the file."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFound(ApiError):
    """No such route."""

    status = 404
    code = "not_found"


class ModelNotFound(ApiError):
    """This server serves one model, under one name."""

    status = 404
    code = "model_not_found"


class OtherHttp(ApiError):
    """What has to do with HTTP alone: method, size, a body that does not come."""

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class QueueFull(ApiError):
    """As many requests wait as may wait."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry = True
    retry_after_s = 1


class InternalError(ApiError):
    """Our bug; the log has the rest."""

    status = 500
    type = "server_error"
    code = "internal_error"


class Unavailable(ApiError):
    """The engine cannot take requests now."""

    status = 503
    type = "server_error"


class ModelLoading(Unavailable):
    """Not ready yet."""

    code = "model_loading"
    retry = True
    retry_after_s = 2


class Draining(Unavailable):
    """The server is about to leave."""

    code = "draining"
    retry = True
    retry_after_s = 5


class EngineRestarting(Unavailable):
    """The engine has ended; another one is on its way."""

    code = "engine_restarting"
    retry = True
    retry_after_s = 2


class EngineDead(Unavailable):
    """The engine is gone; the message is the first cause."""

    code = "engine_dead"


class EngineLost(EngineDead):
    """It took a request with it that it had not begun: another engine may have better luck."""

    retry = True
    retry_after_s = 5
