"""`ft run --service`: a unit that systemd reads as the command that was given."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.runtime.cli.console import ft

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.serve import DRAIN_S, LAST_WORDS_S, STOP_GRACE_S
from firmtoken.runtime.cli.service import print_service, service_unit

CASES = Path(__file__).parent / "cases"
ODD = "model.source.path=a b%c$d\"e;'\\x"
ODD_QUOTED = '"model.source.path=a b%%c$$d\\"e;\'\\\\x"'


def unit(
    *overrides: str,
    name: str = "tiny-cpu",
    program: tuple[str, ...] = ("/venv/bin/ft",),
    profile: str = "/home/me/mine.yaml",
    lock: Path | None = None,
    yes: bool = False,
    debug: bool = False,
    folder: str = "/home/me",
    environ: Mapping[str, str] | None = None,
) -> str:
    return service_unit(
        name=name,
        program=program,
        profile=profile,
        overrides=overrides,
        lock=lock,
        yes=yes,
        debug=debug,
        folder=Path(folder),
        environ=environ or {},
    )


def value(text: str, key: str) -> str:
    [found] = re.findall(rf"(?m)^{key}=(.*)$", text)
    return str(found)


def test_the_unit_is_the_golden_one(golden: Callable[[Path, str], None]) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "secret", "PATH": "/bin"}
    golden(CASES / "firmtoken.service", unit("serving.context=8k", ODD, environ=environ))


@pytest.mark.parametrize(
    ("override", "quoted"),
    [
        ("serving.context=8k", "serving.context=8k"),
        ("a=100%", "a=100%%"),
        ("a=$HOME", '"a=$$HOME"'),
        ("a=${HOME}", '"a=$${HOME}"'),
        (";", '";"'),
        ("", '""'),
        ("a={b: [1, 2]}", '"a={b: [1, 2]}"'),
        ("a=x\ny", '"a=x\\x0ay"'),
        ("a=\t\x1b", '"a=\\x09\\x1b"'),
        ("a=\udcff", '"a=\\xff"'),
        ("a=größe", '"a=größe"'),
        (ODD, ODD_QUOTED),
    ],
)
def test_a_value_is_quoted_as_systemd_reads_it(override: str, quoted: str) -> None:
    command = f"/venv/bin/ft run /home/me/mine.yaml --set {quoted}"
    assert value(unit(override), "ExecStart") == command


def test_the_debug_mode_is_kept() -> None:
    command = value(unit("a=b", debug=True), "ExecStart")
    assert command == "/venv/bin/ft run /home/me/mine.yaml --set a=b --debug"


def test_no_value_begins_a_line_of_its_own() -> None:
    text = unit("a=\nExecStartPre=/bin/false", name="x\nExecStartPre=/bin/false")
    assert "\nExecStartPre" not in text
    assert value(text, "Description") == "FirmToken serves x ExecStartPre=/bin/false"
    assert "&& ft run ... --service > " in text


def test_the_time_to_stop_is_more_than_the_server_takes() -> None:
    assert int(value(unit(), "TimeoutStopSec")) > DRAIN_S + LAST_WORDS_S + STOP_GRACE_S


def test_a_folder_is_named_only_where_a_relative_path_could_need_it() -> None:
    assert "WorkingDirectory" not in unit()
    assert value(unit("a=b", folder="/my 100% folder"), "WorkingDirectory") == "/my 100%% folder"
    for folder in ("/x\ny", "/x\\", "/x "):
        with pytest.raises(Failure, match="cannot name the folder"):
            unit("a=b", folder=folder)


def test_the_profile_is_checked_first_and_nothing_is_started(tmp_path: Path) -> None:
    wrong = ft("run", "tiny-cpu", "--service", "--set", "serving.contxt=8k")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "`serving.contxt`" in wrong.stderr
    with pytest.raises(Failure) as failure:
        print_service(
            "tiny-cpu",
            ("serving.requests=256", "serving.context=32k"),
            locked=False,
            lock=None,
            yes=False,
            debug=False,
        )
    assert failure.value.exit_code == 3


def test_paths_are_absolute_and_short_options_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: ft:tiny-cpu\nname: mine\n")
    done = ft("run", "./mine.yaml", "--service", "--port", "2000", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    command = value(done.stdout, "ExecStart")
    assert command.startswith(str(Path(sys.executable).parent))
    assert command.endswith(f" run {tmp_path}/mine.yaml --set server.port=2000")
    assert value(done.stdout, "WorkingDirectory") == str(tmp_path)


def test_a_lock_is_part_of_the_command() -> None:
    command = value(unit("a=b", lock=Path("/home/me/my lock.json")), "ExecStart")
    assert command.endswith(' --set a=b --locked --lock "/home/me/my lock.json"')


def test_consent_to_a_download_is_part_of_the_command() -> None:
    command = value(unit("a=b", yes=True), "ExecStart")
    assert command.endswith(" --set a=b --yes")


def test_a_shipped_profile_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_service("tiny-cpu", (), locked=False, lock=None, yes=False, debug=False) == 0
    assert value(capsys.readouterr().out, "ExecStart").endswith(" run ft:tiny-cpu")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    program = tmp_path / "a b%c/ft"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = unit(
        *("a=x\ny", "a=\udcff", ";", "", ODD),
        program=(str(program),),
        folder=str(program.parent),
        environ={"HF_HOME": 'a "b" %c $d'},
    )
    path = tmp_path / "firmtoken.service"
    path.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    about = [line for line in done.stderr.splitlines() if "firmtoken" in line]
    assert (done.returncode, about) == (0, [])
