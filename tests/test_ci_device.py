"""`.ci/device` with steps that need no GPU."""

import json
import runpy
import tarfile
from pathlib import Path
from typing import Any  # the script is no module: what it defines has no types here

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "device"

KEEP = """
import os, pathlib
cache = pathlib.Path(os.environ["TRITON_CACHE_DIR"], "kernel")
print('{"case": "cache", "was": %d}' % (int(cache.read_text()) if cache.exists() else 0))
cache.write_text("7")
"""


@pytest.fixture(scope="module")
def device() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def steps(device: dict[str, Any], *codes: str, limit_s: float = 60.0) -> dict[str, Any]:
    """`one`: a command of each piece of code."""
    commands = [("-c", code) for code in codes]
    return {"one": device["Step"](commands=commands, limit_s=limit_s)}


def summary(out: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((out / "summary.json").read_text())
    return found


def test_what_a_step_prints_is_kept_and_its_kernels_are_there_in_the_next_run(
    device: dict[str, Any], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    wanted = steps(device, KEEP)
    assert device["main"]([str(tmp_path), str(first), "one"], wanted) == 0
    with tarfile.open(first / "kernels.tar.gz") as archive:
        assert "./kernel" in archive.getnames()
    assert device["main"]([str(first), str(second), "one"], wanted) == 0
    assert json.loads((first / "one.json").read_text()) == {"case": "cache", "was": 0}
    assert json.loads((second / "one.json").read_text()) == {"case": "cache", "was": 7}
    assert [outcome["passed"] for outcome in summary(second)] == [True]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ('print(\'{"case": "failed"}\')', "a line says so"),
    ],
)
def test_a_step_that_fails_fails_the_run_and_its_other_commands_still_run(
    device: dict[str, Any], tmp_path: Path, code: str, why: str
) -> None:
    wanted = steps(device, code, "print('after')")
    assert device["main"]([str(tmp_path), str(tmp_path / "out"), "one"], wanted) == 1
    [outcome] = summary(tmp_path / "out")
    assert not outcome["passed"] and outcome["why"].endswith(why)
    assert (tmp_path / "out" / "one.json").read_text().endswith("after\n")


def test_a_step_that_takes_too_long_is_killed_and_what_it_printed_stays(
    device: dict[str, Any], tmp_path: Path
) -> None:
    wanted = steps(device, "import time; print('begun'); time.sleep(60)", limit_s=0.5)
    assert device["main"]([str(tmp_path), str(tmp_path / "out"), "one"], wanted) == 1
    [outcome] = summary(tmp_path / "out")
    assert outcome["why"].endswith("was not done when 0.5 s were over") and outcome["seconds"] < 10
    assert (tmp_path / "out" / "one.json").read_text() == "begun\n"


def test_an_unknown_step_is_told_with_those_that_there_are(
    device: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device["main"]([str(tmp_path), str(tmp_path / "out"), "none"]) == 2
    assert "steps: kernels, tiny, bench, load" in capsys.readouterr().err


def test_every_command_of_a_step_is_there(device: dict[str, Any]) -> None:
    root = SCRIPT.parents[1]
    named = [
        part
        for step in device["STEPS"].values()
        for command in step.commands
        for part in command
        if part.startswith("tests/")
    ]
    assert named and all((root / part).is_file() for part in named)
