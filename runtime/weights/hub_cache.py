"""The library's cache of a repository on this disk, in the layout that other programs share.

models--ORG--NAME/refs/REVISION            the commit that the revision was when it was last asked for
models--ORG--NAME/blobs/DIGEST             the bytes of a file; `DIGEST.incomplete` while they arrive
models--ORG--NAME/snapshots/COMMIT/FILE    a link to them, made when they are whole and checked
"""

import os
from pathlib import Path

from firmtoken.runtime.weights.files import write_note
from firmtoken.runtime.weights.hub import COMMIT, Hub, HubFile, Repository
from firmtoken.runtime.weights.hub_errors import HubError
from firmtoken.schema.regular_file import read_regular


def storage(hub: Hub, name: str) -> Path:
    """The folder of a repository."""
    return hub.cache / f"models--{name.replace('/', '--')}"


def snapshot(hub: Hub, repository: Repository) -> Path:
    """The folder of its files at its commit."""
    return storage(hub, repository.name) / "snapshots" / repository.commit


def blob(hub: Hub, repository: Repository, file: HubFile) -> Path:
    """Where the bytes of a file are, once they are whole."""
    return storage(hub, repository.name) / "blobs" / file.digest


def incomplete(hub: Hub, repository: Repository, file: HubFile) -> Path:
    """Where they are until then."""
    return blob(hub, repository, file).with_suffix(".incomplete")


def is_here(hub: Hub, repository: Repository, file: HubFile) -> bool:
    """True if the snapshot has it, in the size that the hub says."""
    return _size(snapshot(hub, repository) / file.name) == file.bytes


def has_blob(hub: Hub, repository: Repository, file: HubFile) -> bool:
    """True if its bytes are here, perhaps for another file or commit."""
    return _size(blob(hub, repository, file)) == file.bytes


def missing_bytes(hub: Hub, repository: Repository, file: HubFile) -> int:
    """What is still to be downloaded of it."""
    if is_here(hub, repository, file) or has_blob(hub, repository, file):
        return 0
    arrived = _size(incomplete(hub, repository, file)) or 0
    return file.bytes - arrived if arrived <= file.bytes else file.bytes


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def link(hub: Hub, repository: Repository, file: HubFile) -> None:
    """Put a whole blob into the snapshot; raises `OSError`."""
    place = snapshot(hub, repository) / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f".{file.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    try:
        new.symlink_to(os.path.relpath(blob(hub, repository, file), place.parent))
        new.replace(place)
    finally:
        new.unlink(missing_ok=True)


def remember(hub: Hub, repository: Repository) -> None:
    """Which commit a branch or tag is now, for when the hub cannot be asked. A read-only cache stays as it is."""
    known = remembered_commit(hub, repository.name, repository.revision)
    if known == repository.commit:
        return
    ref = storage(hub, repository.name) / "refs" / repository.revision
    write_note(ref, repository.commit.encode())


def remembered_commit(hub: Hub, name: str, revision: str) -> str | None:
    """The commit that `revision` is, or was when the hub was last asked; None if it never was."""
    if COMMIT.fullmatch(revision):
        return revision
    ref = storage(hub, name) / "refs" / revision
    try:
        commit = read_regular(ref).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


def files_here(hub: Hub, name: str, revision: str) -> Repository | None:
    """The repository as far as this disk has it, for a commit whose files were never listed here."""
    commit = remembered_commit(hub, name, revision)
    if commit is None:
        return None
    folder = storage(hub, name) / "snapshots" / commit
    files = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file():
            digest = path.resolve().name
            files[path.name] = HubFile(name=path.name, bytes=path.stat().st_size, digest=digest)
    return Repository(name=name, revision=revision, commit=commit, files=files)


def unwritable(path: Path, error: OSError) -> HubError:
    """The disk's own words on it."""
    return HubError(
        f"cannot write `{path}`: {error.strerror or error}",
        hint="make room or set permissions there, or let `HF_HOME` name another folder",
    )
