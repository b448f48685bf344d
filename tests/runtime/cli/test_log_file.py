"""The log file: where it is, what it begins with, and that a full disk ends nothing."""

import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.log_file import LogFile, NoLogFile, open_log_file, opening_lines
from firmtoken.runtime.server.foreign_variables import foreign_variables
from firmtoken.runtime.server.log_lines import LogLines

OPENING = ("first", "second")


def opened(
    setting: str, environ: dict[str, str], *, name: str = "mine", port: int = 1919
) -> LogFile | None:
    return open_log_file(setting, name=name, port=port, environ=environ, opening=OPENING)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full_disk(_file: LogFile) -> TextIO:
    """In place of `LogFile._open`."""
    return Path("/dev/full").open("a")


@contextmanager
def logger(file: logging.Handler) -> Iterator[logging.Logger]:
    log = logging.Logger("test")
    log.addHandler(file)
    yield log
    file.close()


def test_by_default_it_lies_in_the_state_folder_and_begins_with_the_opening(tmp_path: Path) -> None:
    file = opened("auto", {"XDG_STATE_HOME": str(tmp_path)})
    assert file is not None
    with logger(file) as log:
        log.info("a line")
    path = tmp_path / "firmtoken/logs/mine-1919.log"
    assert file.path == path
    assert path.read_text() == "first\nsecond\na line\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/x", "etc-x"),
        ("a b\n", "a-b-"),
        ("...", "profile"),
        ("\N{GRINNING FACE}", "profile"),
        ("模" * 200, "模" * 66),
    ],
)
def test_a_name_that_is_no_file_name_stays_in_the_folder(
    tmp_path: Path, name: str, shown: str
) -> None:
    file = opened("auto", {"XDG_STATE_HOME": str(tmp_path)}, name=name)
    assert file is not None
    file.close()
    assert names_in(tmp_path / "firmtoken/logs") == [f"{shown}-1919.log"]


def test_off_writes_nothing(tmp_path: Path) -> None:
    assert opened("off", {"XDG_STATE_HOME": str(tmp_path)}) is None
    assert names_in(tmp_path) == []


def test_a_default_folder_that_cannot_be_written_is_said_once_and_the_server_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "firmtoken").write_text("a file, where root cannot make a folder either")
    assert opened("auto", {"XDG_STATE_HOME": str(tmp_path)}) is None
    assert capsys.readouterr().err.splitlines() == [
        "no log file, stderr alone has the log: "
        f"cannot make `{tmp_path}/firmtoken/logs`: Not a directory",
        "  hint: `server.log_file` names another place, or is `off`",
    ]


def test_a_default_file_that_cannot_be_written_is_said_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "firmtoken/logs/mine-1919.log"
    path.mkdir(parents=True)
    assert opened("auto", {"XDG_STATE_HOME": str(tmp_path)}) is None
    said = capsys.readouterr().err
    assert f"the log: cannot write `{path}`: it is a directory, no regular file\n" in said


def test_a_user_without_a_home_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert opened("auto", {}) is None
    assert "the log: Could not determine home directory.\n" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["missing folder", "folder", "fifo", "device"])
def test_a_path_that_was_asked_for_and_cannot_be_written_is_refused(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "x" / "ft.log" if kind == "missing folder" else tmp_path / "x"
    match kind:
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/full")
    with pytest.raises(Failure) as failure:
        opened(str(path), {})
    assert failure.value.exit_code == 1
    reason = {
        "missing folder": "No such file or directory",
        "folder": "it is a directory, no regular file",
        "fifo": "it is a FIFO, no regular file",
        "device": "it is a device, no regular file",
    }[kind]
    assert failure.value.text == f"`server.log_file`: cannot write `{path}`: {reason}"


def test_two_servers_do_not_share_a_file(tmp_path: Path) -> None:
    file = opened(str(tmp_path / "ft.log"), {})
    assert file is not None
    with logger(file) as log:
        file.maxBytes = 100
        for _ in range(20):
            log.info("enough to begin another file")
        with pytest.raises(Failure, match="another server writes it"):
            opened(str(tmp_path / "ft.log"), {})
    again = opened(str(tmp_path / "ft.log"), {})
    assert again is not None
    again.close()


def test_it_is_rotated_and_each_file_begins_with_the_opening(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "ft.log", OPENING)
    assert (file.maxBytes, file.backupCount) == (10_000_000, 5)
    file.maxBytes = 200
    with logger(file) as log:
        for number in range(300):
            log.info("line %d", number)
    names = names_in(tmp_path)
    assert names == ["ft.log", *(f"ft.log.{number}" for number in range(1, 6))]
    texts = [(tmp_path / name).read_text() for name in (*reversed(names[1:]), "ft.log")]
    assert all(text.startswith("first\nsecond\nline ") for text in texts)
    assert max(map(len, texts)) <= 200
    kept = [int(found) for found in re.findall(r"line (\d+)", "".join(texts))]
    assert kept == list(range(kept[0], 300))


def test_a_disk_that_gets_full_ends_nothing_and_what_was_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = LogFile(tmp_path / "ft.log", OPENING)
    with logger(file) as log:
        log.info("before")
        with monkeypatch.context() as patch:
            patch.setattr(LogFile, "_open", full_disk)
            assert file.stream is not None
            file.stream.close()
            file.stream = file._open()
            for number in range(1000):
                log.info("lost %d", number)
        log.info("after")
        log.info("as ever")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(r"ft.log` cannot be written, its lines are lost: .*No space left", said)
    assert (tmp_path / "ft.log").read_text().splitlines() == [
        *OPENING,
        "before",
        "1000 lines could not be written here",
        "after",
        "as ever",
    ]


def test_a_folder_that_goes_away_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogFile(folder / "ft.log", ())
    file.maxBytes = 100
    with logger(file) as log:
        (folder / "ft.log").unlink()
        folder.rmdir()
        for _ in range(20):
            log.info("enough to begin another file")
    assert "No such file or directory" in capsys.readouterr().err


def test_a_stderr_on_the_same_full_disk_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LogFile(tmp_path / "ft.log", ())
    with logger(file) as log, monkeypatch.context() as patch:
        full = io.TextIOWrapper(io.FileIO("/dev/full", "w"), write_through=True)
        patch.setattr(sys, "stderr", full)
        patch.setattr(LogFile, "_open", full_disk)
        assert file.stream is not None
        file.stream.close()
        log.info("lost")
        assert file.stream is None
        full.close()


def test_a_full_disk_at_the_start_is_no_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogFile, "_open", full_disk)
    with pytest.raises(NoLogFile, match="No space left on device"):
        LogFile(tmp_path / "ft.log", OPENING)


def test_the_opening_names_program_command_plan_and_foreign_variables() -> None:
    plan = compile_argument("tiny-cpu", ()).plan
    environ = {"HOME": "/x", "OMP_WAIT_POLICY": "ACTIVE", "PYTORCH_ALLOC_CONF": "a b"}
    argv = ("/bin/ft", "run", "tiny cpu")
    lines = opening_lines(plan, argv=argv, pid=7, environ=environ)
    assert re.fullmatch(r"firmtoken \d+\.\d+\S*, process 7", lines[0])
    assert lines[1:] == (
        "command: /bin/ft run 'tiny cpu'",
        f"profile tiny-cpu, plan {plan.fingerprint}",
        "foreign variables that alter torch or CUDA: PYTORCH_ALLOC_CONF='a b'",
    )
    assert opening_lines(plan, argv=argv, pid=7, environ={})[3].endswith(": none")


def test_foreign_is_what_alters_torch_and_is_not_ours() -> None:
    environ = dict.fromkeys(("TORCH_LOGS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "PATH"), "1")
    environ |= {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_MODULE_LOADING": "LAZY", "LD_PRELOAD": "x.so"}
    assert foreign_variables(environ, {"CUDA_MODULE_LOADING"}) == {
        "CUDA_LAUNCH_BLOCKING": "1",
        "LD_PRELOAD": "x.so",
        "TORCH_LOGS": "1",
    }


def test_the_last_200_lines_are_kept_a_stack_line_by_line() -> None:
    kept = LogLines()
    with logger(kept) as log:
        for number in range(500):
            log.info("line %d", number)
        log.info("a\nb\n%s", "c" * 10_000)
    assert kept.lines() == (*(f"line {number}" for number in range(303, 500)), "a", "b", "c" * 2000)


def test_a_server_names_its_file_and_usr1_writes_its_stacks(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    process = start()
    port = process.ready().removeprefix("http://127.0.0.1:")
    process.signal(signal.SIGUSR1)
    process.wait_for(process.errors, r"\(most recent call first\):")
    process.wait_for(process.errors, "in _run_once")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0
    [path] = re.findall(r"(?m)^log file (.*)$", "".join(process.output))
    assert path == str(tmp_path / f"firmtoken/logs/tiny-cpu-{port}.log")
    opening, log = Path(path).read_text().split("torch or CUDA: ", 1)
    assert re.match(
        rf"firmtoken \S+ process {process.popen.pid}\ncommand: .* tiny-cpu --port 0\n", opening
    )
    lines = log.splitlines()[1:]
    assert any("engine process" in line for line in lines)
    assert set(lines) <= {line.rstrip("\n") for line in process.errors}
