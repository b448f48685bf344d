"""`ft synth`: a complete synthetic checkpoint of a profile's model, in the layout of the published one."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.progress import ByteProgress, gigabytes
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.synthetic import SyntheticWeights, num_bytes
from firmtoken.runtime.weights.synthetic_files import plan_shards, small_files, write_checkpoint
from firmtoken.schema.model import Model, SyntheticSource


def synthesise(argument: str, directory: str, overrides: Sequence[str], *, seed: int | None) -> int:
    """Write it; the exit code."""
    model = compile_argument(argument, overrides).loaded.profile.model
    # Of a link, what it leads to: the link itself cannot be replaced by a folder.
    folder = Path(os.path.realpath(directory))
    _require_empty(folder, directory)
    weights = SyntheticWeights(model, _seed(model) if seed is None else seed)
    shards = plan_shards(weights.tensors.values())
    try:
        files = small_files(model, weights, shards)
    except LoadError as error:
        raise Failure(str(error), exit_code=WRONG, hint=error.hint) from error
    size = sum(map(num_bytes, weights.tensors.values()))
    progress = ByteProgress(
        "writing",
        total=size,
        begun_at=0,
        clock=time.monotonic,
        on_terminal=sys.stderr.isatty(),
    )
    begun = time.monotonic()
    try:
        _require_room(folder, size + sum(map(len, files.values())))
        write_checkpoint(folder, weights, shards, files, progress)
    except OSError as error:
        raise Failure(
            f"cannot write `{directory}`: {error.strerror}; nothing is left of it",
            exit_code=FAILED,
            hint="choose a folder on a disk that has room and may be written",
        ) from error
    finally:
        progress.end()
    seconds = time.monotonic() - begun
    print(
        f"{directory}: {model.name}, {len(weights.tensors):,} tensors, shards: {len(shards)}, "
        f"{gigabytes(size)} in {seconds:.1f} s ({size / 1e6 / seconds:.1f} MB/s)"
    )
    return 0


def _seed(model: Model) -> int:
    return model.source.synthetic.seed if isinstance(model.source, SyntheticSource) else 0


def _require_empty(folder: Path, directory: str) -> None:
    try:
        if folder.is_mount():
            raise Failure(
                f"`{directory}` is no place for a checkpoint: a disk is mounted there",
                exit_code=FAILED,
                hint="name a folder inside of it that does not exist yet",
            )
        if not folder.exists() or not any(folder.iterdir()):
            return
        found = "it is not empty"
    except OSError as error:
        found = str(error.strerror)
    raise Failure(
        f"`{directory}` is no place for a checkpoint: {found}",
        exit_code=FAILED,
        hint="name a folder that does not exist yet",
    )


def _require_room(folder: Path, size: int) -> None:
    """Says both numbers before the first byte."""
    parent = next(one for one in folder.parents if one.exists())
    free = shutil.disk_usage(parent).free
    numbers = f"{gigabytes(size)} to write, {gigabytes(free)} free in `{parent}`"
    if size > free:
        raise Failure(numbers, exit_code=FAILED, hint="choose a folder on a disk that has room")
    print(numbers, file=sys.stderr, flush=True)
