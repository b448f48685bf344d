"""Nothing that is read at a start waits for ever because a FIFO lies where a file was."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.evidence import read_records
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.lock import require_lock
from firmtoken.runtime.cli.log_file import LogFile, NoLogFile
from firmtoken.runtime.server.folder import ModelFolderFault, read_text
from firmtoken.runtime.server.key_file import KeysFault, read_keys
from firmtoken.runtime.server.report import read_report
from firmtoken.runtime.weights.checkpoint import indexed_files, says_synthetic
from firmtoken.runtime.weights.disk import BLOCK, is_cached, read_part
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import read_object
from firmtoken.runtime.weights.header import read_header
from firmtoken.runtime.weights.hub import Hub
from firmtoken.runtime.weights.hub_cache import remembered_commit
from firmtoken.schema.diagnostic import ProfileError
from firmtoken.schema.load import load_profile
from firmtoken.schema.references import File, read_bytes
from firmtoken.schema.regular_file import NotRegular

pytestmark = pytest.mark.timeout(60)  # what waits, waits for ever


def lock(path: Path) -> None:
    require_lock(compile_argument("tiny-cpu", ()), path, "tiny-cpu")


def part(path: Path, *, cached: bool) -> None:
    """Of weights: the preflight has seen a file there."""
    read_part(path, 0, BLOCK, memoryview(bytearray(BLOCK)), cached=cached)


REFUSE: dict[str, tuple[str, type[Exception], Callable[[Path], object]]] = {
    "a profile": ("mine.yaml", ProfileError, lambda path: load_profile(str(path))),
    "keys": ("keys.txt", KeysFault, read_keys),
    "a lock": ("mine.lock.json", Failure, lock),
    "a lock in YAML": ("mine.lock.yaml", Failure, lock),
    "a log file": ("ft.log", NoLogFile, lambda path: LogFile(path, ())),
    "evidence": ("kernels-sm89-triton-3.7.1.yaml", Failure, read_records),
    "a report": ("report.json", OSError, lambda path: read_report(path.parent)),
    "a text of a model": ("alice.txt", ModelFolderFault, read_text),
    "a config": ("config.json", LoadError, lambda path: read_object(path, "")),
    "an index": ("model.safetensors.index.json", LoadError, indexed_files),
    "a header": ("model.safetensors", LoadError, read_header),
    "cached weights": ("model.safetensors", NotRegular, lambda path: part(path, cached=True)),
    "weights": ("model.safetensors", NotRegular, lambda path: part(path, cached=False)),
}


@pytest.mark.parametrize("what", REFUSE)
def test_a_fifo_in_place_of_a_file_is_refused(tmp_path: Path, what: str) -> None:
    name, refusal, read = REFUSE[what]
    os.mkfifo(tmp_path / name)
    with pytest.raises(refusal, match=r"FIFO|regular file"):
        read(tmp_path / name)


def test_a_profile_that_became_a_fifo_after_it_was_found_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.yaml")
    found = read_bytes(File(path=tmp_path / "mine.yaml", shown="mine.yaml", folder=tmp_path))
    assert not isinstance(found, bytes)
    assert found.message == "`mine.yaml` cannot be read: it is a FIFO, no regular file"


def test_a_fifo_in_place_of_what_may_be_missing_counts_as_missing(tmp_path: Path) -> None:
    hub = Hub(endpoint="http://nowhere", cache=tmp_path, token=None, wait=lambda _seconds: None)
    ref = tmp_path / "models--a--b" / "refs" / "main"
    ref.parent.mkdir(parents=True)
    os.mkfifo(ref)
    assert remembered_commit(hub, "a/b", "main") is None
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    assert not says_synthetic(tmp_path)
    assert not is_cached(tmp_path / "model.safetensors.index.json")
