"""The model part of a profile from a checkpoint on the hub: `ft plan --model hub:...`, `ft profile model hub:...`."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.quantities import count
from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.cli.hub import (
    SCHEME,
    HubCheckpoint,
    open_on_hub,
    say_commit,
    source_of,
)
from firmtoken.runtime.cli.output import put, yaml_text
from firmtoken.runtime.cli.profile import HEAD
from firmtoken.runtime.cli.progress import gigabytes
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.hub_download import to_download

FILE = "model.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """What replaces a profile's model."""

    override: str
    """For `--set`: it names a model file, so that faults are told with their line."""
    inspect: Callable[[Plan], None]
    """Compares a plan with the checkpoint's headers; raises `Failure`."""


def hub_model(argument: str) -> HubModel:
    """Of `hub:ORG/NAME[@REVISION]`; fetches small files and headers, no weights. Raises `Failure`."""
    if not argument.startswith(SCHEME):
        raise Failure(
            f"`--model {argument}` names no repository of the hub",
            exit_code=WRONG,
            hint="`--model hub:ORG/NAME`; a model file is `--set model=FILE`,"
            " made of a folder by `ft profile model DIR`",
        )
    checkpoint = open_on_hub(source_of(argument), os.environ)
    repository = checkpoint.repository
    say_commit(checkpoint, f"`--model {SCHEME}{repository.name}@{repository.commit}` keeps it")
    folder = checkpoint.notes.of(checkpoint.hub, repository.name, repository.commit)
    path = str(folder / FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(
            f"cannot make `{folder}`: {error.strerror}",
            exit_code=FAILED,
            hint="`XDG_CACHE_HOME` names another folder for it",
        ) from error
    put(_text(checkpoint), path)

    def inspect(plan: Plan) -> None:
        _require_source(plan, checkpoint)
        checkpoint.require_fit(plan)
        _say_size(checkpoint)

    return HubModel(override=f"model={json.dumps(path)}", inspect=inspect)


def _require_source(plan: Plan, checkpoint: HubCheckpoint) -> None:
    """A `--set` comes after `--model`: the plan would name one checkpoint and be compared with another."""
    if plan.model.source == checkpoint.source:
        return
    found = " ".join(f"{field} `{value}`" for field, value in plan.model.source.items())
    repository = checkpoint.repository
    raise Failure(
        f"`--model` is commit {repository.commit} of `{repository.name}`, and `--set` makes the model's source {found}",
        exit_code=WRONG,
        hint=f"leave out that `--set`: `--model {SCHEME}ORG/NAME@REVISION` names both",
    )


def make_hub_model_profile(argument: str, *, output: str | None) -> int:
    """Print or write it, pinned to the commit that was found; the exit code."""
    checkpoint = open_on_hub(source_of(argument), os.environ)
    say_commit(checkpoint, None)  # what is written names it
    put(_text(checkpoint), output)
    return 0


def _text(checkpoint: HubCheckpoint) -> str:
    try:
        return HEAD + yaml_text(checkpoint.model())
    except LoadError as error:
        raise Failure(
            f"{SCHEME}{checkpoint.repository.name}: {error}", exit_code=WRONG, hint=error.hint
        ) from error


def _say_size(checkpoint: HubCheckpoint) -> None:
    files = checkpoint.files
    total = sum(file.bytes for file in files)
    missing = to_download(checkpoint.hub, checkpoint.repository, files)
    here = f", {gigabytes(total - missing)} of them here" if missing < total else ""
    say(f"`ft run` downloads {gigabytes(total)} in {count(len(files), 'file')}{here}", None)
