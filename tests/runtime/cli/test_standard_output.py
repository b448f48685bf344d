"""Standard output that is full, closed, left by its reader, or poor in letters: one sentence at most, never a stack."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.cli.console import PATIENCE_S, SOURCE

FULL = "cannot write to standard output: No space left on device\n"
COMMANDS = (
    ("version",),
    ("--help",),
    ("schema",),
    ("plan", "tiny-cpu"),
    ("plan", "tiny-cpu", "--timeline", "-"),
    ("explain", "tiny-cpu", "context"),
    ("check", "tiny-cpu"),
    ("run", "tiny-cpu"),
)


def shell(
    redirection: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = shlex.join((sys.executable, "-m", "firmtoken.runtime.cli.run", *arguments))
    return subprocess.run(
        ["sh", "-c", f"{command} {redirection}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_full_disk_is_one_sentence(arguments: tuple[str, ...]) -> None:
    done = shell(">/dev/full", *arguments, PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr) == (1, FULL)


@pytest.mark.parametrize("arguments", [("version",), ("schema",)], ids=" ".join)
def test_a_full_disk_that_is_found_late_is_the_same_sentence(arguments: tuple[str, ...]) -> None:
    done = shell(">/dev/full", *arguments, PYTHONUNBUFFERED="")
    assert (done.returncode, done.stderr) == (1, FULL)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_outputs_are_outputs_that_nobody_reads(unbuffered: str) -> None:
    done = shell(">&-", "plan", "tiny-cpu", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (0, "")
    done = shell("2>&-", "plan", "nowhere", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_reader_that_left_is_no_fault_to_tell() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "firmtoken.runtime.cli.run", "plan", "tiny-cpu"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_letters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: ft:tiny-cpu\nname: modèle\n", encoding="utf-8")
    done = shell("", "plan", str(tmp_path / "mine.yaml"), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "plan mod\\xe8le " in done.stdout
