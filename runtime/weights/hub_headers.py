"""The headers of a checkpoint that is not here, by ranges of its files; kept by commit, which never changes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import httpx2
import msgspec

from firmtoken.runtime.weights.checkpoint import Checkpoint, assemble
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import write_note
from firmtoken.runtime.weights.header import LENGTH_BYTES, TensorHeader, header_bytes, parse_header
from firmtoken.runtime.weights.hub import (
    COMMIT,
    NOT_JSON,
    PARTIAL,
    Hub,
    HubFile,
    Repository,
    asked_of,
    look_up,
    opened,
    patiently,
    read_at_most,
)
from firmtoken.runtime.weights.hub_cache import (
    files_here,
    remember,
    remembered_commit,
    snapshot,
    storage,
)
from firmtoken.runtime.weights.hub_errors import HubError, Unreachable
from firmtoken.runtime.weights.hub_files import Shards, described, shards
from firmtoken.runtime.weights.hub_threads import run_in_threads
from firmtoken.schema.regular_file import read_regular

STREAMS = 8
EVERY_S = 0.25
LISTING = "files.json"

Headers = Mapping[str, TensorHeader]
"""Of one file, by the tensors' names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What was read about repositories and is no file of theirs: listings and headers."""

    folder: Path

    def of(self, hub: Hub, name: str, commit: str) -> Path:
        """The folder of one commit."""
        return self.folder / storage(hub, name).name / commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A repository, and why it is not what the hub says now, if it is not."""

    repository: Repository
    stale: Unreachable | None = None


def find(hub: Hub, notes: Notes, name: str, revision: str) -> Found:
    """A known commit is not asked for again. A branch is, unless the hub cannot be reached; raises `HubError`."""
    if COMMIT.fullmatch(revision) and (known := _listed(hub, notes, name, revision)):
        return Found(repository=known)
    try:
        repository = look_up(hub, name, revision)
    except Unreachable as error:
        known = _listed(hub, notes, name, revision) or _whole_here(hub, name, revision)
        if known is None:
            raise
        return Found(repository=known, stale=error)
    write_note(
        notes.of(hub, name, repository.commit) / LISTING,
        msgspec.json.encode(list(repository.files.values())),
    )
    remember(hub, repository)
    return Found(repository=repository)


def remote_checkpoint(
    hub: Hub, notes: Notes, repository: Repository, weights: Shards
) -> Checkpoint:
    """Every tensor by the headers of its files, which are fetched unless noted; raises `HubError`, `LoadError`.

    Its folder is the snapshot, whose weights may not be here.
    """
    folder = notes.of(hub, repository.name, repository.commit)
    headers: dict[str, Headers] = {}
    jobs = []
    for name in weights:
        file = repository.files[name]
        noted = _noted(folder, file)
        if noted is None:
            jobs.append(partial(_fetch, hub, repository, file, folder, headers))
        else:
            headers[name] = noted
    run_in_threads(jobs, count=STREAMS, every_s=EVERY_S, meanwhile=lambda: None)
    return assemble(snapshot(hub, repository), weights, headers.__getitem__)


def _listed(hub: Hub, notes: Notes, name: str, revision: str) -> Repository | None:
    commit = remembered_commit(hub, name, revision)
    if commit is None:
        return None
    try:
        files = msgspec.json.decode(
            read_regular(notes.of(hub, name, commit) / LISTING), type=list[HubFile]
        )
    except (OSError, *NOT_JSON):
        return None
    return Repository(
        name=name, revision=revision, commit=commit, files={file.name: file for file in files}
    )


def _whole_here(hub: Hub, name: str, revision: str) -> Repository | None:
    """What another program has downloaded, if it is a checkpoint."""
    repository = files_here(hub, name, revision)
    if repository is None:
        return None
    try:
        described(repository)
        shards(repository, snapshot(hub, repository))
    except LoadError:
        return None
    return repository


def _note(folder: Path, file: HubFile) -> Path:
    return folder / f"{file.name}.header.json"


def _noted(folder: Path, file: HubFile) -> Headers | None:
    """The headers of a file as they were noted; None if they were not, or if the note was spoiled since."""
    try:
        return parse_header(file.name, read_regular(_note(folder, file)), file.bytes)
    except (OSError, LoadError):
        return None


def _fetch(
    hub: Hub,
    repository: Repository,
    file: HubFile,
    folder: Path,
    headers: dict[str, Headers],
    stop: Event,
) -> None:
    """The JSON of one header; two requests, because the first 8 bytes say how long it is."""
    is_long_enough = file.bytes >= LENGTH_BYTES
    beginning = _range(hub, repository, file, 0, LENGTH_BYTES) if is_long_enough else b""
    length = header_bytes(file.name, beginning, file.bytes)
    if stop.is_set():
        return
    text = _range(hub, repository, file, LENGTH_BYTES, length) if length else b""
    headers[file.name] = parse_header(file.name, text, file.bytes)
    write_note(_note(folder, file), text)


def _range(hub: Hub, repository: Repository, file: HubFile, first: int, count: int) -> bytes:
    asked = asked_of(hub, repository.name, repository.revision, file.name)

    def ask() -> bytes:
        with opened(hub, repository, file, first, count) as answer:
            if answer.status_code != PARTIAL:
                raise HubError(
                    f"{hub.endpoint} sends no part of `{file.name}`, only the whole of it",
                    hint="download it and name its folder: `model.source: {path: ...}`",
                )
            text = read_at_most(answer, count)
        if len(text) != count:
            raise httpx2.RemoteProtocolError(f"{len(text)} bytes of {count}")
        return text

    return patiently(ask, asked, hub.wait)
