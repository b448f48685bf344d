"""`ft plan --timeline`: a picture in a file, words on the terminal."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.runtime.cli.console import ft


def test_a_timeline_is_drawn_and_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    done = ft("plan", "pro6000-minimax", "--timeline", str(path))
    assert done.returncode == 0
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("decode step, one request, 8,192 tokens before it: ")
    assert last == f"wrote {path}"
    assert "waiting for the link" in done.stdout
    assert "link busy" in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.svg"]


def test_words_alone_write_nothing(tmp_path: Path) -> None:
    done = ft("plan", "tiny-cpu", "--timeline", "-", cwd=tmp_path)
    assert done.returncode == 0
    assert "prefill span" in done.stdout
    assert "wrote" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    path.write_text("old")
    assert ft("plan", "tiny-cpu", "--timeline", str(path)).returncode == 0
    assert path.read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["profile.yaml", "out", "", "out.svg.gz"])
def test_only_pictures_are_ever_replaced(tmp_path: Path, name: str) -> None:
    """A profile where the picture's name belongs must survive the slip."""
    path = tmp_path / (name or "unnamed")
    path.write_text("mine")
    done = ft("plan", "tiny-cpu", "--timeline", str(path) if name else "")
    assert done.returncode == 2
    assert "writes a picture in SVG" in done.stderr
    assert "`--timeline timeline.svg` draws it" in done.stderr
    assert path.read_text() == "mine"


@pytest.mark.parametrize("place", ["missing/out.svg", "folder.svg", "file/out.svg"])
def test_a_file_that_cannot_be_written_is_one_sentence(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    done = ft("plan", "tiny-cpu", "--timeline", str(tmp_path / place))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"cannot write `{tmp_path / place}`: ")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "other", [("--format", "json"), ("--unroll", "decode"), ("--output", "x.json")]
)
def test_a_timeline_stands_alone(tmp_path: Path, other: tuple[str, str]) -> None:
    done = ft("plan", "tiny-cpu", "--timeline", "-", *other, cwd=tmp_path)
    assert done.returncode == 2
    assert "`--timeline` goes with neither" in done.stderr
    assert list(tmp_path.iterdir()) == []
