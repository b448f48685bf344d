"""Files of a repository onto this disk: resumed at the byte where they stopped, kept only if their digest is right.

The library's own download begins a file again that was interrupted, and compares sizes only (huggingface_hub 2.4,
`file_download._download_to_tmp_and_move`). So the bytes are asked for here, over plain HTTP: Xet storage cannot be
resumed by offset either, and `hf_xet` need not be installed.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from threading import Event
from typing import Protocol

import httpx2

from firmtoken.runtime.weights.hub import PARTIAL, TRIES, Hub, HubFile, Repository, asked_of, opened
from firmtoken.runtime.weights.hub_cache import (
    blob,
    has_blob,
    incomplete,
    is_here,
    link,
    missing_bytes,
    storage,
    unwritable,
)
from firmtoken.runtime.weights.hub_errors import FAULTS, HubError, explain, pause_s
from firmtoken.runtime.weights.hub_threads import run_in_threads
from firmtoken.schema.regular_file import open_regular

STREAMS = 8
"""Files at a time. One stream of a content network rarely fills a fast line."""
EVERY_S = 0.25
"""Between two reports of progress."""
PIECE_BYTES = 2**20
"""Of what was downloaded before, read again for its digest."""

Progress = Callable[[int], None]
"""Called with the bytes that have arrived since the start."""


class Digest(Protocol):
    """Of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class Stopped(Exception):
    """Another file failed, or Ctrl-C came."""


def to_download(hub: Hub, repository: Repository, files: Sequence[HubFile]) -> int:
    """Bytes that are not here yet; equal files arrive once."""
    once = {file.digest: file for file in files}
    return sum(missing_bytes(hub, repository, file) for file in once.values())


def free_bytes(hub: Hub) -> int:
    """Of the disk that holds the cache; raises `HubError`."""
    there = hub.cache
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        return shutil.disk_usage(there).free
    except OSError as error:
        raise unwritable(there, error) from error


def download(
    hub: Hub, repository: Repository, files: Sequence[HubFile], progress: Progress
) -> None:
    """Every file into its snapshot; raises `HubError`. What has arrived by then is kept for the next time."""
    wanted = [file for file in files if not is_here(hub, repository, file)]
    if not wanted:
        return
    with _alone(hub, repository):
        once = {file.digest: file for file in wanted if not has_blob(hub, repository, file)}
        arrivals = [Arrival(hub, repository, file) for file in once.values()]
        run_in_threads(
            [arrival.fetch for arrival in arrivals],
            count=STREAMS,
            every_s=EVERY_S,
            meanwhile=partial(_report, arrivals, progress),
        )
        try:
            for file in wanted:
                link(hub, repository, file)
        except OSError as error:
            raise unwritable(hub.cache, error) from error


def _report(arrivals: Sequence["Arrival"], progress: Progress) -> None:
    progress(sum(arrival.received for arrival in arrivals))


@contextmanager
def _alone(hub: Hub, repository: Repository) -> Iterator[None]:
    """Two programs that append to one file would spoil it."""
    folder = storage(hub, repository.name)
    place = hub.cache / ".locks" / folder.name / "firmtoken.lock"
    try:
        (folder / "blobs").mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        file = open(place, "ab", opener=open_regular)  # noqa: SIM115  closed below, after the lock
    except OSError as error:
        raise unwritable(place, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HubError(
                f"another program is downloading `{repository.name}` already",
                hint="wait until it is done; then nothing is left to download",
            ) from error
        yield


class Arrival:
    """One file on its way."""

    def __init__(self, hub: Hub, repository: Repository, file: HubFile) -> None:
        self._hub = hub
        self._repository = repository
        self._file = file
        self._digest = new_digest(file)
        """Of the bytes that are in the incomplete file."""
        self.received = 0
        """Bytes, written by the thread of this file and read by another."""

    def fetch(self, stop: Event) -> None:
        """All of it, checked, as a blob; raises `HubError`, or `Stopped`."""
        place = incomplete(self._hub, self._repository, self._file)
        try:
            with open(place, "ab", buffering=0, opener=open_regular) as part:
                if part.tell() > self._file.bytes:
                    self._restart(part)
                self._digest_before(place, stop)
                self._complete(part, stop)
                os.fsync(part.fileno())
            self._accept(place)
        except OSError as error:
            raise unwritable(place, error) from error

    def _digest_before(self, place: Path, stop: Event) -> None:
        with open(place, "rb", opener=open_regular) as before:
            while piece := before.read(PIECE_BYTES):
                _go_on(stop)
                self._digest.update(piece)

    def _complete(self, part: FileIO, stop: Event) -> None:
        """Go on after each end of the connection; not for ever, if no byte comes between."""
        tries = 0
        while part.tell() < self._file.bytes:
            first = part.tell()
            try:
                self._receive(part, stop)
            except FAULTS as error:
                tries = 1 if part.tell() > first else tries + 1
                pause = pause_s(error, tries)
                if pause is None or tries == TRIES:
                    asked = asked_of(
                        self._hub, self._repository.name, self._repository.revision, self._file.name
                    )
                    raise explain(error, asked) from error
                self._hub.wait(pause)

    def _receive(self, part: FileIO, stop: Event) -> None:
        first = part.tell()
        with opened(self._hub, self._repository, self._file, first) as answer:
            if first and answer.status_code != PARTIAL:  # the whole file comes again
                self._restart(part)
            for piece in answer.iter_raw():
                _go_on(stop)
                _write(part, piece)
                self._digest.update(piece)
                self.received += len(piece)
                if part.tell() > self._file.bytes:  # another file, perhaps one without an end
                    return
        if part.tell() < self._file.bytes:
            raise httpx2.RemoteProtocolError("the answer ends before the file does")

    def _restart(self, part: FileIO) -> None:
        part.truncate(0)
        part.seek(0)
        self._digest = new_digest(self._file)

    def _accept(self, place: Path) -> None:
        found = self._digest.hexdigest()
        size = place.stat().st_size
        if (size, found) != (self._file.bytes, self._file.digest):
            place.unlink()
            raise HubError(
                f"`{self._file.name}` of `{self._repository.name}` arrived damaged: expected "
                f"{self._file.bytes} bytes of digest {self._file.digest}, found {size} of {found}",
                hint="it was deleted: the same command fetches it again, and only it",
            )
        place.replace(blob(self._hub, self._repository, self._file))
        link(self._hub, self._repository, self._file)


def new_digest(file: HubFile) -> Digest:
    """sha256 of a large file; of a small one git's sha1, which begins with its size."""
    if len(file.digest) == hashlib.sha256().digest_size * 2:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.bytes, usedforsecurity=False)


def _write(part: FileIO, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[part.write(rest) :]


def _go_on(stop: Event) -> None:
    if stop.is_set():
        raise Stopped
