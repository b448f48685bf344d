"""A small hub on this machine: one repository, its API and its files, and faults on demand.

As the public one, it sends large files (weights) from another path by a redirect, answers ranges, and names commit and
digests in headers.
"""

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = ".safetensors"
POLL_S = 0.02
"""How soon it notices that it shall end."""
SILENCE_S = 30.0
ENDLESS_BYTES = 256 * 2**20
"""More than any reader should take that expects an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One answer."""

    path: str
    status: int
    range: str | None
    file: str | None
    first: int
    """Offset in the file."""
    count: int
    """Bytes of it that were sent."""
    token: str | None


@dataclass(slots=True, kw_only=True)
class Faults:
    """What goes wrong; each can be changed while the server runs."""

    drops: dict[str, list[int]] = field(default_factory=dict)
    """File -> after how many bytes of each answer the connection ends, until the list is used up."""
    damaged: set[str] = field(default_factory=set)
    """Files whose last byte is another."""
    statuses: list[int] = field(default_factory=list)
    """Of the next answers, whatever is asked."""
    word: str = "as ordered"
    """What refusals say."""
    retry_after: str | None = None
    gated: bool = False
    ignores_ranges: bool = False
    endless: set[str] = field(default_factory=set)
    """Files that go on with zeros behind their end; the empty name is the listing."""
    pause_s: float = 0.0
    """Before each piece of a large file."""
    silences: int = 0
    """How many answers with a large file say nothing more after their first piece."""


class HubServer:
    """Serves `files` as the repository `name`; its revision `main` and its commit are `commit`."""

    def __init__(self, files: Mapping[str, bytes], *, name: str = "tiny/moe") -> None:
        self.files = dict(files)
        self.name = name
        self.commit = COMMIT
        self.listing: dict[str, object] | bytes = {}
        """What its listing says otherwise, or its text."""
        self.faults = Faults()
        self.sent: list[Sent] = []
        self.lock = threading.Lock()
        self.connections: list[socket.socket] = []
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._server = _Quiet(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.content_url = self.url
        """Where large files are."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Connections are refused from now on."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def of_file(self, name: str) -> list[Sent]:
        """The answers that held bytes of this file."""
        with self.lock:
            return [sent for sent in self.sent if sent.file == name]

    def bytes_sent(self, name: str) -> int:
        """Of this file, in all answers."""
        return sum(sent.count for sent in self.of_file(name))

    def paths(self) -> Sequence[str]:
        """What was asked for, in order."""
        with self.lock:
            return [sent.path for sent in self.sent]


def folder_files(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@contextmanager
def serving(files: Mapping[str, bytes]) -> Iterator[HubServer]:
    hub = HubServer(files)
    try:
        yield hub
    finally:
        hub.close()


def git_sha1(content: bytes) -> str:
    """What git calls a file of this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def digest(name: str, content: bytes) -> str:
    """What the hub names a file by: sha256 of a large one, git's sha1 of a small one."""
    return hashlib.sha256(content).hexdigest() if name.endswith(LARGE) else git_sha1(content)


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_met: object) -> None:
        """A client that leaves is no news."""


class _Handler(BaseHTTPRequestHandler):
    server_of: HubServer
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.server_of.connections.append(self.request)
        super().setup()

    def log_message(self, *_said: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        hub, path = self.server_of, unquote(urlsplit(self.path).path)
        with hub.lock:
            status = hub.faults.statuses.pop(0) if hub.faults.statuses else 200
        if status != 200:
            return self._refuse(status, None)
        prefix = f"/api/models/{hub.name}/revision/"
        if path.startswith("/api/models/"):
            if not path.startswith(prefix):
                return self._refuse(401, "RepoNotFound")
            return self._list(path.removeprefix(prefix))
        if path.startswith("/content/"):
            return self._send_file(path.removeprefix("/content/"))
        return self._resolve(path)

    def _list(self, revision: str) -> None:
        hub = self.server_of
        if revision not in ("main", hub.commit):
            return self._refuse(404, "RevisionNotFound")
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
            | (
                {"lfs": {"size": len(content), "sha256": digest(name, content), "pointerSize": 134}}
                if name.endswith(LARGE)
                else {}
            )
            for name, content in hub.files.items()
        ]
        body = {"id": hub.name, "sha": hub.commit, "private": False, "siblings": siblings}
        if isinstance(hub.listing, bytes):
            return self._answer(200, hub.listing)
        return self._answer(200, json.dumps(body | hub.listing).encode())

    def _resolve(self, path: str) -> None:
        hub = self.server_of
        repository, _, place = path.removeprefix("/").partition("/resolve/")
        revision, _, file = place.partition("/")
        if repository != hub.name:
            return self._refuse(401, "RepoNotFound")
        if hub.faults.gated and "authorization" not in self.headers:
            return self._refuse(401, "GatedRepo")
        if revision not in ("main", hub.commit) or file not in hub.files:
            return self._refuse(404, "EntryNotFound")
        content = hub.files[file]
        headers = {"X-Repo-Commit": hub.commit, "ETag": f'"{digest(file, content)}"'}
        if file.endswith(LARGE):
            headers |= {
                "X-Linked-Etag": headers["ETag"],
                "X-Linked-Size": str(len(content)),
                "Location": f"{hub.content_url}/content/{file}",
            }
            return self._answer(302, b"", headers)
        return self._send_file(file, headers)

    def _send_file(self, file: str, headers: Mapping[str, str] | None = None) -> None:
        hub = self.server_of
        content = hub.files[file]
        if file in hub.faults.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        first, last = 0, len(content) - 1
        asked = self.headers.get("Range")
        partial = asked is not None and not hub.faults.ignores_ranges
        if asked is not None and partial:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
        body = content[first : last + 1]
        given = dict(headers or {})
        if partial:
            given["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        with hub.lock:
            drops = hub.faults.drops.get(file)
            drop = drops.pop(0) if drops else None
        self._answer(206 if partial else 200, body, given, file=file, first=first, drop=drop)

    def _refuse(self, status: int, code: str | None) -> None:
        retry = self.server_of.faults.retry_after
        headers = ({"X-Error-Code": code} if code else {}) | (
            {"Retry-After": retry} if retry and status == 429 else {}
        )
        self._answer(status, json.dumps({"error": self.server_of.faults.word}).encode(), headers)

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        file: str | None = None,
        first: int = 0,
        drop: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        endless = (file or "") in self.server_of.faults.endless
        if endless:  # its end would be that of the connection
            self.close_connection = True
            body += bytes(ENDLESS_BYTES)
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        count = 0
        try:
            for piece in _pieces(body if drop is None else body[:drop]):
                if file is not None and file.endswith(LARGE):
                    self._wait(count)
                self.wfile.write(piece)
                count += len(piece)
        except OSError:  # the client has left
            self.close_connection = True
        if drop is not None:
            self.close_connection = True
        self._note(status, file, first, count)

    def _wait(self, count: int) -> None:
        hub = self.server_of
        time.sleep(hub.faults.pause_s)
        with hub.lock:
            silent = count > 0 and hub.faults.silences > 0
            hub.faults.silences -= silent
        if silent:
            self.connection.settimeout(SILENCE_S)
            with suppress(OSError):
                self.connection.recv(1)  # until the client leaves
            raise ConnectionAbortedError

    def _note(self, status: int, file: str | None, first: int, count: int) -> None:
        sent = Sent(
            path=self.path,
            status=status,
            range=self.headers.get("Range"),
            file=file,
            first=first,
            count=count,
            token=self.headers.get("Authorization"),
        )
        with self.server_of.lock:
            self.server_of.sent.append(sent)


def _pieces(body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), 2**16):
        yield body[start : start + 2**16]
