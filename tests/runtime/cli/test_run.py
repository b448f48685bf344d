"""`ft run` as a process: what it prints, how signals end it, which exit code it leaves."""

import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

import firmtoken

BODY = {"prompt": "abc", "max_tokens": 30, "stream": True, "ignore_eos": True}


HALF_POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"


Start = Callable[..., Any]


def address_of(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.report(11)
def test_the_effective_context_is_the_first_line_and_ready_the_last(start: Start) -> None:
    process = start()
    address = process.ready()
    assert re.match(
        r"effective context 16,384 of 32,768 \(as asked\) \| experts \d+ of 256 resident",
        process.output[0],
    )
    assert httpx.get(f"{address}/health").json()["effective_context"] == 16_384
    assert httpx.get(f"{address}/v1/plan").json()["profile"]["name"] == "tiny-cpu"
    process.signal(signal.SIGINT)
    assert process.exit_code() == 0
    assert process.output[-1].startswith(f"ready {address}")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_requests_end(start: Start, signum: int) -> None:
    process = start({"step_s": 0.02})
    address = process.ready()
    with httpx.stream("POST", f"{address}/v1/completions", json=BODY) as response:
        lines = response.iter_lines()
        next(lines)
        process.signal(signum)
        rest = [line for line in lines if line]
    assert len(rest) == 31
    assert rest[-1] == "data: [DONE]"
    assert process.exit_code() == 0
    assert gone(process.engine_pid())


def test_connections_without_a_request_do_not_hold_a_draining_server(start: Start) -> None:
    process = start()
    address = address_of(process.ready())
    sent = (HALF_POST, b"GET /health HTTP/1.1\r\nhost:", b"")
    connections = [socket.create_connection(address) for _ in sent]
    try:
        for connection, data in zip(connections, sent, strict=True):
            connection.sendall(data)
        time.sleep(0.3)
        process.signal(signal.SIGTERM)
        assert process.exit_code(5) == 0
        assert b'"code":"draining"' in connections[0].recv(65536)
        assert connections[1].recv(65536) == connections[2].recv(65536) == b""
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.report(44)
def test_requests_that_do_not_end_are_left_after_a_while(start: Start) -> None:
    process = start({"stall": True, "drain_s": 0.5})
    address = process.ready()
    with httpx.stream("POST", f"{address}/v1/completions", json=BODY) as response:
        process.signal(signal.SIGTERM)
        assert "the server is shutting down" in response.read().decode()
        assert process.exit_code(8) == 143
    assert "still open after 0.5 s: leaving" in "".join(process.errors)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_leaves_at_once(start: Start, signum: int, code: int) -> None:
    process = start({"stall": True})
    address = process.ready()
    with httpx.stream("POST", f"{address}/v1/completions", json=BODY):
        process.signal(signum)
        process.wait_for(process.errors, r"open ones \(1\) have 60 s")
        process.signal(signum)
        assert process.exit_code(5) == code
    assert gone(process.engine_pid())


@pytest.mark.report(44)
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_ready_leaves_at_once(start: Start, signum: int, code: int) -> None:
    process = start({"load_s": 60})
    process.wait_for(process.errors, "loading: reading weights")
    process.signal(signum)
    assert process.exit_code(5) == code
    assert gone(process.engine_pid())
    assert not any(line.startswith("ready") for line in process.output)


@pytest.mark.parametrize("delay_s", [0.05, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2])
def test_ctrl_c_at_any_moment_leaves_no_process(start: Start, delay_s: float) -> None:
    process = start({"load_s": 60})
    time.sleep(delay_s)
    process.signal(signal.SIGINT)
    # Before our first line runs, Python itself answers.
    assert process.popen.wait(10) in (130, -signal.SIGINT)
    for line in process.errors:
        if found := re.search(r"engine process (\d+)", line):
            assert gone(int(found[1]))


def test_a_signal_after_the_engine_died_does_not_change_the_code(start: Start) -> None:
    process = start({"die_after": 3})
    address = process.ready()
    with socket.create_connection(address_of(address)) as idle:
        idle.sendall(HALF_POST)
        httpx.post(f"{address}/v1/completions", json=BODY)
        process.wait_for(process.errors, "the engine is dead")
        process.signal(signal.SIGINT)
        assert process.exit_code() == 4


def test_a_busy_port_is_said_before_the_engine_starts(start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start({}, "tiny-cpu", "--port", str(port))
        assert process.exit_code() == 1
    assert process.errors == [
        f"cannot listen on `127.0.0.1:{port}`: Address already in use\n",
        "  hint: choose another: `--port 0` takes a free one\n",
    ]


def test_a_host_of_another_machine_is_said_with_one_that_is_here(start: Start) -> None:
    process = start({}, "tiny-cpu", "--host", "192.0.2.1", "--port", "0")
    assert process.exit_code() == 1
    assert process.errors[0] == "cannot listen on `192.0.2.1:0`: Cannot assign requested address\n"
    assert process.errors[1].startswith("  hint: for example `--host 127.0.0.1`")


def test_a_host_that_is_none_is_said(start: Start) -> None:
    process = start({}, "tiny-cpu", "--host", "x" * 100)
    assert process.exit_code() == 1
    assert process.errors[0] == f"cannot listen on `{'x' * 77}...`: this is no host name\n"
    assert process.errors[1].startswith("  hint: for example `--host 127.0.0.1`")


def test_a_gpu_profile_here_shows_its_context_and_what_is_missing(start: Start) -> None:
    process = start({}, "4090-qwen")
    assert process.exit_code() == 3
    assert process.output[0].startswith("effective context ")
    assert process.errors[0].startswith("this machine has no NVIDIA GPU, and the plan `4090-qwen`")
    assert process.errors[1].startswith("  hint: run it where that GPU is and its driver is loaded")


def test_a_plan_that_no_machine_can_run_yet_names_what_is_missing_and_nothing_else(
    start: Start,
) -> None:
    process = start({}, "4090-minimax")
    assert process.exit_code() == 3
    assert process.output == []
    assert len(process.errors) == 2
    assert "cannot run yet: nothing launches `admit`, `fetch`, `resolve`" in process.errors[0]
    assert process.errors[1].startswith("  hint: this version runs GPU plans whose experts are all")


def test_a_wrong_profile_is_told_with_its_place(start: Start, tmp_path: Path) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        "schema: firmtoken/1\nname: x\nhardware: ft:hardware/cpu\nmodel: ft:models/tiny-moe\n"
        "serving: {contxt: 5}\n"
    )
    process = start({}, str(profile))
    assert process.exit_code() == 2
    assert process.output == []
    assert re.match(r"\S*mine.yaml:5:11: `serving.contxt`: ", process.errors[0])
    assert "did you mean `context`?" in process.errors[1]


@pytest.mark.report(47)
@pytest.mark.parametrize("broken", [False, True])
def test_a_missing_or_broken_file_of_the_checkpoint_is_named(
    start: Start, tmp_path: Path, broken: bool
) -> None:
    if broken:
        (tmp_path / "tokenizer.json").write_text('{"broken": true}')
    process = start({}, "tiny-cpu", "--set", f"model.source.path={tmp_path}")
    assert process.exit_code() == 1
    message = "not a tokenizer: " if broken else "no such file"
    assert process.errors[0].startswith(f"{tmp_path}/tokenizer.json: {message}")
    assert process.errors[1].startswith("  hint: ")


def shard_of(folder: Path) -> Path:
    """The largest file of weights in a copy of the embedded checkpoint, made in `folder`."""
    source = Path(str(files("firmtoken.profiles"))) / "weights/tiny-moe"
    for path in source.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    return max(folder.glob("*.safetensors"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("fault", ["truncated", "missing", "another"])
def test_broken_weights_are_refused_before_an_engine_is_started(
    start: Start, tmp_path: Path, fault: str
) -> None:
    shard = shard_of(tmp_path)
    match fault:
        case "truncated":
            os.truncate(shard, shard.stat().st_size // 2)
        case "missing":
            shard.unlink()
        case _:
            shard.write_bytes(b"\0" * 4096)
    process = start({}, "tiny-cpu", "--port", "0", "--set", f"model.source.path={tmp_path}")
    assert process.exit_code() == 1
    assert len(process.errors) == 2
    assert shard.name in process.errors[0]
    assert process.errors[1].startswith("  hint: ")
    assert not any(line.startswith("ready") for line in process.output)


def test_a_shipped_name_runs_from_any_folder_and_its_context_is_said_once(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(firmtoken.__file__).absolute().parent.parent))
    (tmp_path / "schema.py").write_text("raise SystemExit('imported from the working directory')")
    process = start()
    process.ready()
    process.signal(signal.SIGINT)
    assert process.exit_code() == 0
    said = [line for line in process.output if line.startswith("effective context ")]
    assert len(said) == 1


def test_an_empty_file_of_keys_is_refused(start: Start, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("\n")
    process = start({}, "tiny-cpu", "--set", f"server.api_keys.file={keys}")
    assert process.exit_code() == 2
    assert process.errors[0] == f"`server.api_keys.file`: {keys}: holds no key\n"
