"""`model.source: {hub: ...}` on the command line: which commit, whether it fits, how much is to come; then it comes.

huggingface_hub and what it brings are imported with this module, so only `run.py` imports it, when a hub is named.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.quantities import count
from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.cli.progress import ByteProgress, gigabytes
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.hub import Hub, HubFile, Repository, usual_hub
from firmtoken.runtime.weights.hub_cache import snapshot
from firmtoken.runtime.weights.hub_download import download, free_bytes, to_download
from firmtoken.runtime.weights.hub_errors import HubError, Unreachable
from firmtoken.runtime.weights.hub_files import Shards, described, shards, whole
from firmtoken.runtime.weights.hub_headers import Notes, find, remote_checkpoint
from firmtoken.runtime.weights.model_config import read_model
from firmtoken.runtime.weights.preflight import preflight_headers
from firmtoken.schema.model import HubSource

SCHEME = "hub:"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCheckpoint:
    """A checkpoint on the hub whose small files are here."""

    hub: Hub
    notes: Notes
    repository: Repository
    stale: Unreachable | None
    """Why the hub could not be asked which commit it is now."""
    folder: Path
    """Of its files, so far as they are here."""
    weights: Shards

    @property
    def files(self) -> tuple[HubFile, ...]:
        """All that serving reads."""
        return whole(self.repository, self.weights)

    @property
    def source(self) -> dict[str, str]:
        """`model.source`, pinned to the commit."""
        return {"hub": self.repository.name, "revision": self.repository.commit}

    def model(self) -> dict[str, object]:
        """The model part of a profile; its source is pinned to the commit. Raises `LoadError`."""
        name = self.repository.name.partition("/")[2]
        return read_model(self.folder, name=name, source=self.source)

    def require_fit(self, plan: Plan) -> None:
        """Compare every header with the plan, and say what fits; raises `Failure`."""
        with told():
            checkpoint = remote_checkpoint(self.hub, self.notes, self.repository, self.weights)
            preflight_headers(plan, checkpoint)
        say(
            f"`{self.repository.name}` fits the plan by its headers:"
            f" {count(len(checkpoint.tensors), 'tensor')} in {count(len(self.weights), 'file')}",
            None,
        )


@contextmanager
def told() -> Iterator[None]:
    """What the hub or its files are not becomes the end of the command."""
    try:
        yield
    except (HubError, LoadError) as error:
        raise Failure(str(error), exit_code=FAILED, hint=error.hint) from error


def source_of(argument: str) -> HubSource:
    """`hub:ORG/NAME` or `hub:ORG/NAME@REVISION`; raises `Failure`."""
    name, at, revision = argument.removeprefix(SCHEME).partition("@")
    try:
        return HubSource.model_validate({"hub": name} | ({"revision": revision} if at else {}))
    except ValidationError as error:
        raise Failure(
            f"`{argument}` names no repository of the hub",
            exit_code=WRONG,
            hint="for example `hub:nvidia/Qwen3.6-35B-A3B-NVFP4`, or `hub:ORG/NAME@REVISION`",
        ) from error


def open_on_hub(source: HubSource, environ: Mapping[str, str]) -> HubCheckpoint:
    """Find its commit and fetch its small files; raises `Failure`."""
    notes = Notes(folder=cache_folder(environ) / "hub")
    with told():
        hub = usual_hub()
        found = find(hub, notes, source.hub, source.revision)
        repository = found.repository
        download(hub, repository, described(repository), lambda _arrived: None)
        folder = snapshot(hub, repository)
        return HubCheckpoint(
            hub=hub,
            notes=notes,
            repository=repository,
            stale=found.stale,
            folder=folder,
            weights=shards(repository, folder),
        )


def cache_folder(environ: Mapping[str, str]) -> Path:
    """For what can be made again: XDG_CACHE_HOME, or ~/.cache; raises `Failure` for a user without a home."""
    base = environ.get("XDG_CACHE_HOME")
    # The XDG standard: a path that is not absolute does not count.
    if base and Path(base).is_absolute():
        return Path(base) / "firmtoken"
    try:
        return Path.home() / ".cache" / "firmtoken"
    except RuntimeError as error:
        raise Failure(
            f"no place for a cache: {error}", exit_code=FAILED, hint="set XDG_CACHE_HOME"
        ) from error


def fetch_checkpoint(plan: Plan, *, yes: bool) -> Plan:
    """The plan with its checkpoint on this disk: its source is the folder, whose name is the commit that was taken.

    Raises `Failure` before the first byte of weights if the checkpoint does not fit the plan, if the disk cannot hold
    it, or if nobody agrees to the download.
    """
    source = HubSource.model_validate(plan.model.source)
    checkpoint = open_on_hub(source, os.environ)
    commit = checkpoint.repository.commit
    say_commit(checkpoint, f"`--set model.source.revision={commit}` keeps it")
    missing = to_download(checkpoint.hub, checkpoint.repository, checkpoint.files)
    if missing:
        checkpoint.require_fit(plan)
        _require_room(checkpoint, missing)
        _require_consent(missing, yes=yes)
    _download(checkpoint, missing)
    return replace(plan, model=replace(plan.model, source={"path": str(checkpoint.folder)}))


def say_commit(checkpoint: HubCheckpoint, hint: str | None) -> None:
    """Of a branch or tag, and how this command keeps that commit; what a whole commit names needs no word."""
    repository, stale = checkpoint.repository, checkpoint.stale
    if stale is not None:
        say(
            f"{stale}; `{repository.revision}` is taken as it was last seen, commit {repository.commit}",
            None,
        )
    elif repository.revision != repository.commit:
        say(
            f"`{repository.revision}` of `{repository.name}` is commit {repository.commit} now",
            hint,
        )


def _require_room(checkpoint: HubCheckpoint, missing: int) -> None:
    """Says both numbers before the first byte."""
    hub = checkpoint.hub
    with told():
        free = free_bytes(hub)
    total = sum(file.bytes for file in checkpoint.files)
    numbers = (
        f"{gigabytes(missing)} of {gigabytes(total)} to download from {hub.endpoint},"
        f" {gigabytes(free)} free in `{hub.cache}`"
    )
    if missing > free:
        raise Failure(
            numbers,
            exit_code=FAILED,
            hint="make room there, or let `HF_HOME` name a folder on a disk that has it",
        )
    say(numbers, None)


def _require_consent(missing: int, *, yes: bool) -> None:
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(
            f"{gigabytes(missing)} would be downloaded, and nobody is here to be asked",
            exit_code=WRONG,
            hint="`--yes` downloads without a question",
        )
    print("download it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Failure(
            "nothing was downloaded",
            exit_code=FAILED,
            hint="`model.source: {path: ...}` names a checkpoint that is here already",
        )


def _download(checkpoint: HubCheckpoint, missing: int) -> None:
    hub, repository, files = checkpoint.hub, checkpoint.repository, checkpoint.files
    total = sum(file.bytes for file in files)
    begun = time.monotonic()
    progress = ByteProgress(
        "downloading",
        total=total,
        begun_at=total - missing,
        clock=time.monotonic,
        on_terminal=sys.stderr.isatty(),
    )
    try:
        with told():
            download(hub, repository, files, progress)
    except BaseException:
        progress.end()
        kept = total - to_download(hub, repository, files)
        say(
            f"{gigabytes(kept)} of {gigabytes(total)} are kept: the same command goes on there",
            None,
        )
        raise
    progress.end()
    if missing:
        say(
            f"downloaded {gigabytes(missing)} in {time.monotonic() - begun:.0f} s, digests as the hub says",
            None,
        )
