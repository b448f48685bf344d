"""The listening socket, bound before the engine is started: a busy port is said at once."""

import errno
import socket
from dataclasses import dataclass

from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.schema.diagnostic import literal

BACKLOG = 2048
ANOTHER_HOST = "for example `--host 127.0.0.1`, or `--host 0.0.0.0` for every network"
ANOTHER_PORT = "choose another: `--port 0` takes a free one"


class PortBusy(HintedFault):
    """The address cannot be bound; the sentence says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A bound socket and where clients find it."""

    socket: socket.socket
    address: str
    """`http://HOST:PORT`."""
    port: int
    """The one that was taken, if 0 was asked for."""


def listen(host: str, port: int) -> Listener:
    """Bind; port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise _no_host(host, error.strerror) from error
    except ValueError as error:  # no IDNA: a label that is empty or longer than 63, a NUL
        raise _no_host(host, "this is no host name") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortBusy(
            f"cannot listen on `{host}:{port}`: {error.strerror}",
            hint=ANOTHER_HOST if error.errno == errno.EADDRNOTAVAIL else ANOTHER_PORT,
        ) from error
    listener.setblocking(False)
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    taken = int(listener.getsockname()[1])
    return Listener(socket=listener, address=f"http://{shown}:{taken}", port=taken)


def _no_host(host: str, reason: str | None) -> PortBusy:
    return PortBusy(
        f"cannot listen on `{literal(host)}`: {reason}",
        hint=ANOTHER_HOST,
    )
