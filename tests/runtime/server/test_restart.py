"""An engine that stalls or dies: everyone hears it, a report says where it was, and the next engine answers."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.runtime.waiting import until, until_healthy

from firmtoken.runtime.server.life import EngineLife
from firmtoken.runtime.server.report import NUM_KEPT, ends, read_report, write_report

Serve = Callable[..., Any]
URL = "/v1/completions"
ANSWERED = {"prompt": "abc", "max_tokens": 3}
ENDLESS = {"prompt": "abc", "max_tokens": 900, "ignore_eos": True}


def streamed(running: Any) -> str:
    with httpx.stream(
        "POST", f"{running.address}{URL}", json=ENDLESS | {"stream": True}, timeout=30
    ) as response:
        return response.read().decode()


@pytest.mark.report(39)
def test_the_next_engine_answers_without_help(serve: Serve, tmp_path: Path) -> None:
    running = serve({"die_after": 3, "once": str(tmp_path / "died")}, most_restarts=3)
    first = httpx.post(f"{running.address}{URL}", json=ENDLESS)
    assert (first.status_code, first.json()["error"]["code"]) == (503, "engine_dead")
    assert "was killed by SIGKILL" in first.json()["error"]["message"]
    assert "it is being restarted" in first.json()["error"]["message"]
    until_healthy(running.address)
    again = httpx.post(f"{running.address}{URL}", json=ANSWERED)
    assert again.json()["choices"][0]["text"] == "abc"
    health = httpx.get(f"{running.address}/health").json()
    assert (health["state"], health["restarts"], health["cause"]) == ("ready", 1, None)


@pytest.mark.report(39)
def test_kill_9_during_20_streams_ends_each_with_an_error(serve: Serve) -> None:
    running = serve({"step_s": 0.02, "slots": 4}, most_restarts=3)
    with ThreadPoolExecutor(20) as pool:
        streams = [pool.submit(streamed, running) for _ in range(20)]
        held = running.service.engine.held
        until(lambda: (held.num_running, held.num_waiting) == (4, 16))
        os.kill(running.service.engine.engine_pid, signal.SIGKILL)
        killed_at = time.monotonic()
        texts = [stream.result() for stream in streams]
    assert time.monotonic() - killed_at < 5
    for text in texts:
        *_, error, done, end = text.split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert (done, end) == ("data: [DONE]", "")
        assert '"finish_reason":"' not in text
    until_healthy(running.address)
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 200
    assert (held.num_running, held.num_waiting) == (0, 0)


def test_only_a_request_that_had_not_begun_is_to_be_tried_again(serve: Serve) -> None:
    running = serve({"slots": 1, "step_s": 0.05}, most_restarts=3)
    with ThreadPoolExecutor(2) as pool:

        def ask() -> httpx.Response:
            return httpx.post(f"{running.address}{URL}", json=ENDLESS, timeout=30)

        began = pool.submit(ask)
        until(lambda: running.service.engine.held.num_running == 1)
        waited = pool.submit(ask)
        until(lambda: running.service.engine.held.num_waiting == 1)
        os.kill(running.service.engine.engine_pid, signal.SIGKILL)
        ran, queued = began.result(), waited.result()
    assert (ran.status_code, queued.status_code) == (503, 503)
    assert ran.headers["x-should-retry"] == "false"
    assert queued.headers["x-should-retry"] == "true"
    assert int(queued.headers["retry-after"]) > 0


@pytest.mark.report(44, 50)
def test_a_step_that_never_ends_is_noticed_told_and_replaced(serve: Serve, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    running = serve(
        {"spin_after": 2, "once": str(tmp_path / "spun"), "due_s": 0.5},
        most_restarts=3,
        reports=reports,
    )
    asked_at = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        streams = [pool.submit(streamed, running) for _ in range(3)]
        states = set()
        while not all(stream.done() for stream in streams):  # each gives up after 30 s
            health = httpx.get(f"{running.address}/health")
            states.add((health.status_code, health.json()["state"]))
            time.sleep(0.02)
        texts = [stream.result() for stream in streams]
    assert time.monotonic() - asked_at < 0.5 + 5
    assert all('"code":"engine_dead"' in text and "stalled" in text for text in texts)
    until_healthy(running.address)
    assert states <= {(200, "ready"), (503, "restarting")}
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 200
    (place,) = ends(reports)
    report = read_report(place)
    assert (report.kind, report.outcome) == ("stall", "restart 1 of 3")
    assert report.requests.running + report.requests.waiting == 3
    assert "in step" in report.stacks and "fake_engine.py" in report.stacks
    assert max(report.threads, key=lambda thread: thread.cpu_share).id == report.engine_pid
    assert 0 < report.position.overdue_s < 2


def test_an_engine_that_takes_requests_and_begins_nothing_is_replaced(serve: Serve) -> None:
    running = serve({"deaf": True}, most_restarts=3, answer_s=0.5)
    answer = httpx.post(f"{running.address}{URL}", json=ANSWERED)
    assert answer.status_code == 503
    assert "it holds requests and begins nothing" in answer.json()["error"]["message"]
    until_healthy(running.address)
    assert running.service.engine.num_restarts == 1


def test_while_it_restarts_requests_are_told_to_come_back(serve: Serve, tmp_path: Path) -> None:
    running = serve(
        {"die_after": 0, "once": str(tmp_path / "died"), "load_s": 0.5}, most_restarts=3
    )
    httpx.post(f"{running.address}{URL}", json=ANSWERED)
    told = httpx.post(f"{running.address}{URL}", json=ANSWERED)
    assert told.status_code == 503
    assert told.json()["error"]["code"] == "engine_restarting"
    assert told.headers["x-should-retry"] == "true"
    health = httpx.get(f"{running.address}/health")
    assert (health.status_code, health.json()["state"]) == (503, "restarting")
    assert "was killed by SIGKILL" in health.json()["cause"]
    until_healthy(running.address)


@pytest.mark.report(40)
def test_restarts_that_do_not_help_end_with_the_first_cause(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firmtoken.runtime.server.restarts.BACK_OFF_S", (0.0, 0.05, 0.1))
    running = serve({"fault_after": 0, "fault_code": 4}, most_restarts=3)
    for _ in range(4):
        until_healthy(running.address)
        assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 503
    engine = running.service.engine
    until(lambda: engine.state == "dead")
    assert (engine.death.cause, engine.death.exit_code) == ("the device is lost", 4)
    health = httpx.get(f"{running.address}/health").json()
    assert (health["cause"], health["restarts"]) == ("the device is lost", 3)
    told = httpx.post(f"{running.address}{URL}", json=ANSWERED).json()["error"]
    assert (told["code"], told["message"]) == (
        "engine_dead",
        "the engine is dead: the device is lost",
    )


def test_an_engine_that_was_never_ready_is_not_tried_again(serve: Serve) -> None:
    running = serve({"fail_load": True}, wait=False, most_restarts=3)
    until(lambda: running.service.engine.state == "dead")
    assert running.service.engine.num_restarts == 0


def test_a_load_that_stands_still_is_a_stall(serve: Serve) -> None:
    running = serve({"load_s": 60}, wait=False, start_s=0.5, most_restarts=3)
    until(lambda: running.service.engine.state == "dead")
    assert running.service.engine.death.cause.startswith("the engine stalled while it started")


def test_a_dump_tells_what_the_engine_does_and_ends_nothing(serve: Serve) -> None:
    running = serve({"step_s": 0.05}, most_restarts=3)
    pid = running.service.engine.engine_pid
    with httpx.stream("POST", f"{running.address}{URL}", json=ENDLESS | {"stream": True}):
        until(lambda: running.service.engine.held.num_running == 1)
        report = httpx.get(f"{running.address}/v1/dump", timeout=10).json()
    assert (report["kind"], report["state"], report["engine_pid"]) == ("dump", "ready", pid)
    assert report["requests"]["running"] == 1
    assert "most recent call first" in report["stacks"]
    assert running.service.engine.engine_pid == pid
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 200


def test_the_engines_counters_can_be_asked_for(serve: Serve) -> None:
    running = serve({}, most_restarts=3)
    assert httpx.get(f"{running.address}/v1/stats").status_code == 503  # nothing counted yet
    httpx.post(f"{running.address}{URL}", json=ANSWERED)
    stats = httpx.get(f"{running.address}/v1/stats")
    assert stats.status_code == 200
    assert (stats.json()["running"], stats.json()["pages_free"]) == (0, 100)


def test_old_reports_are_forgotten_and_what_is_not_ours_stays(serve: Serve, tmp_path: Path) -> None:
    running = serve({}, most_restarts=3)
    folder = tmp_path / "reports"
    dump = _in_loop(running, running.service.engine.dump)
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "report.json").write_text("{}")
    for minute in range(NUM_KEPT + 3):
        at = f"2026-12-01T02:{minute:02}:00.123+00:00"
        kind = "death" if minute % 2 else "stall"
        write_report(folder, msgspec.structs.replace(dump, kind=kind, at=at), b"{}")
    kept = [place.name for place in ends(folder)]
    assert len(kept) == NUM_KEPT
    assert kept[0].startswith("2026-12-01T02-22-00Z-stall-")
    assert kept[-1].startswith("2026-12-01T02-03-00Z-death-")
    assert (folder / "mine" / "report.json").is_file()
    assert ends(tmp_path / "nowhere") == []


def _in_loop(running: Any, work: Callable[[], Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work(), running.loop).result(10)


def test_an_engine_that_cannot_be_started_is_tried_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full table of descriptors or processes may have room a little later."""
    monkeypatch.setattr("firmtoken.runtime.server.restarts.BACK_OFF_S", (0.0, 0.05, 0.1))
    running = serve({}, most_restarts=3)
    original, failures = EngineLife.start, iter(range(2))

    async def fail(life: EngineLife, receive: Callable[[bytes], bool]) -> None:
        if next(failures, None) is not None:
            raise OSError(24, "Too many open files")
        await original(life, receive)

    monkeypatch.setattr(EngineLife, "start", fail)
    os.kill(running.service.engine.engine_pid, signal.SIGKILL)
    until(lambda: running.service.engine.num_restarts == 3)
    until_healthy(running.address)
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 200


def test_an_engine_that_can_never_be_started_leaves_the_first_cause(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firmtoken.runtime.server.restarts.BACK_OFF_S", (0.0, 0.05, 0.1))
    running = serve({}, most_restarts=3)
    engine = running.service.engine

    async def fail(life: EngineLife, receive: Callable[[bytes], bool]) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(EngineLife, "start", fail)
    os.kill(engine.engine_pid, signal.SIGKILL)
    until(lambda: engine.state == "dead", within_s=10)
    assert engine.death.cause == "the engine process was killed by SIGKILL"
    assert engine.death.exit_code == 4
