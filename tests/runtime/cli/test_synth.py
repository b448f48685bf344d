"""`ft synth` says what it will take, writes a whole checkpoint or nothing, and never over what is there."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.runtime.synthetic_models import overrides

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.synth import synthesise
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.weights.checkpoint import open_checkpoint

SMALL = overrides("qwen3_moe", "{synthetic: {seed: 3}}")


def synth(folder: Path, *sets: str, seed: int | None = None) -> int:
    return synthesise("tiny-cpu", str(folder), [*SMALL, *sets], seed=seed)


def test_it_says_size_and_room_before_and_the_rate_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "checkpoint"
    assert synth(folder) == 0
    said = capsys.readouterr()
    assert f"free in `{tmp_path}`" in said.err and "to write, " in said.err
    assert "small-qwen3, 237 tensors, shards: 1" in said.out and "MB/s" in said.out
    assert len(open_checkpoint(folder).tensors) == 237


def test_the_seed_is_the_profile_s_unless_one_is_given(tmp_path: Path) -> None:
    """And nothing else differs between the files."""
    for name, seed in (("own", None), ("same", 3), ("other", 4)):
        synth(tmp_path / name, seed=seed)
    shard = "model-00001-of-00001.safetensors"
    own, same, other = ((tmp_path / name / shard).read_bytes() for name in ("own", "same", "other"))
    assert own == same != other
    for file in (tmp_path / "own").iterdir():
        if file.name != shard:
            assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()


def test_an_empty_folder_may_be_there_and_a_full_one_not(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert synth(empty) == 0
    with pytest.raises(Failure, match="is no place for a checkpoint: it is not empty") as refused:
        synth(empty)
    assert refused.value.exit_code == FAILED


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        with pytest.raises(Failure) as refused:
            synth(tmp_path / place)
        assert refused.value.exit_code == FAILED
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_without_room_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10_000))
    with pytest.raises(Failure, match=r"^[0-9.]+ kB to write, 10 kB free in") as refused:
        synth(tmp_path / "checkpoint")
    assert refused.value.exit_code == FAILED
    assert not list(tmp_path.iterdir())


def test_a_vocabulary_without_room_for_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="expected at least 282 rows of vocabulary") as refused:
        synth(tmp_path / "checkpoint", "model.geometry.vocab_size=200")
    assert refused.value.exit_code == WRONG
    assert not list(tmp_path.iterdir())


def test_a_failure_leaves_no_folder_that_was_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Failure, match="nothing is left of it"):
        synth(tmp_path / "new" / "deep" / "checkpoint")
    assert not list(tmp_path.iterdir())


def test_a_link_means_the_folder_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    assert synth(tmp_path / "link") == 0
    assert open_checkpoint(tmp_path / "folder").tensors
    assert (tmp_path / "link").is_symlink()


def test_a_mounted_disk_is_refused_before_another_is_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written beside it, the checkpoint would lie on another disk and could not be moved into its place."""
    disk = tmp_path / "disk"
    disk.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == disk)
    with pytest.raises(Failure, match="a disk is mounted there"):
        synth(disk)
    assert synth(disk / "checkpoint") == 0  # as the hint says
