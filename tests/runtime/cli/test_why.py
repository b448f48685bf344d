"""`ft why`: five lines about the last end, whatever else lies in the folder."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.runtime.cli.console import python

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.report_text import duration, five_lines
from firmtoken.runtime.cli.why import why
from firmtoken.runtime.server.report import Report, reports_folder, write_report

CASES = Path(__file__).parent / "cases"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def folder(environ: dict[str, str]) -> Path:
    return reports_folder(environ)


def changed(report: Report, **fields: object) -> Report:
    return msgspec.structs.replace(report, **fields)


def test_five_lines_say_when_why_where_and_what_was_done(
    stalled: Report, golden: Callable[[Path, str], None]
) -> None:
    place = Path("/state/firmtoken/reports/2026-12-01T02-19-33Z-stall-4711")
    golden(CASES / "why.txt", five_lines(stalled, place) + "\n")


def test_it_is_always_five_lines(stalled: Report) -> None:
    nowhere = msgspec.structs.replace(stalled.position, streams=(), culprit=None)
    report = changed(
        stalled,
        kind="death",
        cause="was killed\nby SIGKILL\x1b[2J",
        at="no time",
        uptime_s=None,
        position=nowhere,
        outcome="restarts used up",
    )
    lines = five_lines(report, Path("/x")).splitlines()
    assert lines == [
        "when: no time, the engine of `tiny-cpu` died before it was ready",
        "cause: was killed by SIGKILL?[2J",
        "where: between two launches, 7.3 s over its 50 s",
        "then: requests 3 running, 5 waiting: restarts used up",
        "report: /x",
    ]


def test_the_newest_end_is_told_and_a_dump_is_none(
    stalled: Report,
    environ: dict[str, str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_report(folder, changed(stalled, kind="death", at="2026-12-01T03:00:00+00:00"), b"{}")
    newest = write_report(folder, changed(stalled, at="2026-12-02T00:00:00+00:00"), b"{}")
    write_report(folder, changed(stalled, at="2026-12-01T02:00:00+00:00"), b"{}")
    write_report(folder, changed(stalled, kind="dump", at="2026-12-03T00:00:00+00:00"), b"{}")
    assert why(form="table", environ=environ) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {newest}"


def test_what_is_no_report_is_passed_over_and_said(
    stalled: Report,
    environ: dict[str, str],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = write_report(folder, stalled, b"{}")
    for second, content in enumerate(
        (None, b'{"kind": "stall", "cau', b"[]", b"\xff", b"[" * 10**5)
    ):
        broken = folder / f"2026-12-09T00-00-0{second}Z-stall-9"
        broken.mkdir()
        if content is not None:
            (broken / "report.json").write_bytes(content)
    (folder / "2026-12-09T00-00-09Z-death-9").write_text("a file")
    notes = folder / "zz-my-notes"
    notes.mkdir()
    (notes / "report.json").write_text("{}")
    assert why(form="table", environ=environ) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == f"report: {good}"
    assert len(said.out.splitlines()) == 5
    passed = [line for line in said.err.splitlines() if line.startswith("passed over `")]
    assert len(passed) == len(said.err.splitlines()) == 6
    assert "notes" not in said.err


@pytest.mark.parametrize("exists", [False, True])
def test_without_a_report_one_sentence_says_so(
    environ: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    if exists:
        folder.mkdir(parents=True)
    assert why(form="table", environ=environ) == 0
    assert capsys.readouterr().out == f"no engine stalled or died, says `{folder}`\n"
    assert why(form="json", environ=environ) == 0
    assert capsys.readouterr().out == "null\n"


def test_json_is_the_report(
    stalled: Report, environ: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(folder, stalled, b"{}")
    assert why(form="json", environ=environ) == 0
    assert msgspec.convert(json.loads(capsys.readouterr().out), Report) == stalled


def test_a_folder_that_cannot_be_read_is_1(environ: dict[str, str], folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    with pytest.raises(Failure, match="Not a directory") as failure:
        why(form="table", environ=environ)
    assert failure.value.exit_code == 1


def test_it_loads_no_server_and_nothing_heavy() -> None:
    code = (
        "import sys; from firmtoken.runtime.cli import run\n"
        "sys.argv = ['ft', 'why']\n"
        "try: run.main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(sorted({'asyncio', 'litestar', 'pydantic', 'ruamel', 'torch', 'transformers'}"
        " & sys.modules.keys()), file=sys.stderr)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.99, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (723.4, "12 min 3 s"),
        (3600, "1 h 0 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_durations_are_said_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
