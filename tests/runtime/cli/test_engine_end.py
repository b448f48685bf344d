"""`ft run` when its engine ends: which code it leaves, what its last line says, and that it never lingers."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.waiting import until, until_healthy

RUN_FAKE = Path(__file__).with_name("run_fake.py")
BODY = {"prompt": "abc", "max_tokens": 30, "stream": True, "ignore_eos": True}
Start = Callable[..., Any]


def test_an_engine_that_cannot_load_ends_the_run_with_its_code(start: Start) -> None:
    process = start({"fail_load": True})
    assert process.exit_code() == 1
    assert process.errors[-2:] == ["weights are broken\n", "  hint: again\n"]
    assert "".join(process.errors).count("weights are broken") == 1


@pytest.mark.report(39, 51)
def test_an_engine_that_dies_ends_the_run_with_4(start: Start) -> None:
    process = start({"die_after": 3})
    address = process.ready()
    text = httpx.post(f"{address}/v1/completions", json=BODY).text
    assert '"code":"engine_dead"' in text
    assert process.exit_code() == 4
    assert any("was killed by SIGKILL" in line for line in process.errors)


@pytest.mark.report(40, 51)
def test_restarts_that_are_used_up_end_the_run_with_4_and_the_first_cause_last(
    start: Start,
) -> None:
    process = start({"fault_after": 0, "fault_code": 4, "most_restarts": 1})
    address = process.ready()
    for _ in range(2):
        until_healthy(address, within_s=20)
        text = httpx.post(f"{address}/v1/completions", json=BODY).text
        assert '"code":"engine_dead"' in text
    assert process.exit_code() == 4
    assert process.errors[-1] == "the engine is dead: the device is lost\n"
    assert any("restart 1 of 1" in line for line in process.errors)
    reports = [line.split("report: ")[1].strip() for line in process.errors if "report: " in line]
    assert len(reports) == 2 and all((Path(place) / "report.json").is_file() for place in reports)


def test_a_stderr_that_is_full_does_not_keep_a_dead_engines_server() -> None:
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, str(RUN_FAKE), '{"die_after": 1}', "run", "tiny-cpu", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            ready = next(line for line in process.stdout if line.startswith("ready"))
            httpx.post(f"{ready.split()[1]}/v1/completions", json=BODY)
            assert process.wait(timeout=20) == 4


def test_a_signal_while_the_engine_restarts_ends_the_run_at_once(
    start: Start, tmp_path: Path
) -> None:
    script = {"die_after": 0, "once": str(tmp_path / "died"), "load_s": 2, "most_restarts": 3}
    process = start(script)
    address = process.ready()
    httpx.post(f"{address}/v1/completions", json=BODY)
    process.wait_for(process.errors, "restart 1 of 3")
    begun = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0  # nothing ran: there is nothing to drain
    assert time.monotonic() - begun < 2


def test_an_engine_dies_with_its_server(start: Start) -> None:
    process = start()
    process.ready()
    pid = process.engine_pid()
    process.signal(signal.SIGKILL)
    maps = Path(f"/proc/{pid}/maps")
    until(lambda: not (maps.exists() and maps.read_bytes()), within_s=2)


@pytest.mark.report(40, 51)
def test_an_engine_that_cannot_load_again_leaves_the_first_cause_and_4(
    start: Start, tmp_path: Path
) -> None:
    died = str(tmp_path / "died")
    script = {"die_after": 0, "once": died, "fail_load_beside": died, "most_restarts": 3}
    process = start(script)
    httpx.post(f"{process.ready()}/v1/completions", json=BODY)
    assert process.exit_code() == 4
    assert process.errors[-1] == (
        "the engine is dead: the engine process was killed by SIGKILL: the fake engine falls over\n"
    )
    assert any("no restart: weights are broken" in line for line in process.errors)
    (log_file,) = [Path(line.split()[-1]) for line in process.output if line.startswith("log file")]
    assert "was killed by SIGKILL" in log_file.read_text().splitlines()[-1]


def test_a_client_that_does_not_read_holds_no_server_that_restarts(
    start: Start, tmp_path: Path
) -> None:
    died = str(tmp_path / "died")
    script = {"die_after": 200, "once": died, "load_s": 60, "slow_beside": died}
    process = start(script | {"most_restarts": 3})
    host, port = process.ready().removeprefix("http://").split(":")
    body = json.dumps(BODY | {"max_tokens": 3000, "prompt": "abc" * 300}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as deaf:
        deaf.sendall(head.encode() + body)
        process.wait_for(process.errors, "restart 1 of 3")
        process.signal(signal.SIGTERM)
        begun = time.monotonic()
        assert process.exit_code() == 0
    assert time.monotonic() - begun < 10


def test_shared_memory_that_is_refused_is_a_sentence_and_3() -> None:
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20));"
    )
    limited += f"sys.argv[0] = {str(RUN_FAKE)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", limited, "{}", "run", "tiny-cpu", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert re.search(r"[\d,]+ bytes of shared memory for `\w+` were refused: ", done.stderr)
    assert "hint:" in done.stderr and "Traceback" not in done.stderr
