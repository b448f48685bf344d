"""The engine client alone: segments, start, stop, what no server would do."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from firmtoken.runtime.engine.messages import (
    Add,
    Admitted,
    Done,
    Preempted,
    Ready,
    Sampling,
    frame,
)
from firmtoken.runtime.server.client import EngineClient
from firmtoken.runtime.server.errors import Draining, EngineDead, ModelLoading
from firmtoken.runtime.server.held import HeldRequests
from firmtoken.runtime.server.life import EngineSpec
from firmtoken.runtime.server.process import NoSegments, create_segments

LOG = logging.getLogger("firmtoken.test")


def add(client: EngineClient, max_output: int = 3) -> Add:
    return Add(
        request_id=client.take_id(),
        token_ids=[1, 2],
        max_output=max_output,
        sampling=Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=1),
        stop_token_ids=[],
    )


@pytest.fixture
def run(engine_spec: Callable[..., EngineSpec]) -> Callable[..., None]:
    """Run a coroutine with a client that is stopped afterwards, its child gone."""

    def start(
        work: Callable[[EngineClient], Coroutine[Any, Any, None]],
        script: dict[str, object] | None = None,
        **changes: Any,
    ) -> None:
        async def main() -> None:
            client = EngineClient(
                engine_spec(script or {}, **changes), log=LOG, clock=time.monotonic
            )
            await client.start()
            pid = client.engine_pid
            try:
                await work(client)
            finally:
                await client.stop(grace_s=0.3)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

        asyncio.run(main())

    return start


def test_segments_have_the_planned_sizes(run: Callable[..., None], tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    async def work(client: EngineClient) -> None:
        await client.wait_ready()

    run(work, {"journal": str(journal)}, segments={"bank": 12345, "snapshots": 64})
    assert journal.read_text().splitlines() == [
        "segment bank 12345",
        "segment snapshots 64",
        "stop",
    ]


def test_nothing_is_taken_before_ready(run: Callable[..., None]) -> None:
    async def work(client: EngineClient) -> None:
        assert client.state == "loading"
        with pytest.raises(ModelLoading):
            client.require_ready()
        await client.wait_ready()
        client.require_ready()
        client.drain()
        with pytest.raises(Draining):
            client.open_session().submit(add(client))

    run(work, {"load_s": 0.2})


def test_a_session_gets_its_own_events_only(run: Callable[..., None]) -> None:
    async def work(client: EngineClient) -> None:
        await client.wait_ready()
        first, second = client.open_session(), client.open_session()
        orders = [add(client), add(client)]
        first.submit(orders[0])
        second.submit(orders[1])
        for session, order in ((first, orders[0]), (second, orders[1])):
            events: list[Any] = []
            while not events or not isinstance(events[-1], Done):
                events += await session.events(timeout_s=5)
            assert {event.request_id for event in events} == {order.request_id}
            assert len(events) == 5
        assert (client.held.num_running, client.held.num_waiting) == (0, 0)

    run(work)


def test_an_aborted_request_counts_until_the_engine_has_ended_it(run: Callable[..., None]) -> None:
    async def work(client: EngineClient) -> None:
        await client.wait_ready()
        session = client.open_session()
        session.submit(add(client, max_output=10_000))
        session.close()
        session.close()
        assert client.held.num_waiting == 1
        async with asyncio.timeout(5):
            while client.held.num_waiting + client.held.num_running:
                await asyncio.sleep(0.01)

    run(work, {"step_s": 0.01})


def test_stopping_ends_running_requests_as_draining(run: Callable[..., None]) -> None:
    async def work(client: EngineClient) -> None:
        await client.wait_ready()
        session = client.open_session()
        session.submit(add(client, max_output=10_000))
        stopping = asyncio.create_task(client.stop(grace_s=0.3))
        with pytest.raises(Draining):
            while True:
                await session.events(timeout_s=5)
        await stopping

    run(work, {"stall": True})


def test_an_engine_that_ignores_stop_is_killed(run: Callable[..., None]) -> None:
    async def work(client: EngineClient) -> None:
        await client.wait_ready()

    begun = time.monotonic()
    run(work, {"stall": True})
    assert time.monotonic() - begun < 3


def test_stopping_before_ready_ends_the_wait(run: Callable[..., None]) -> None:
    async def work(client: EngineClient) -> None:
        waiting = asyncio.create_task(client.wait_ready())
        await asyncio.sleep(0.05)
        client.leave()
        with pytest.raises(Draining):
            await waiting

    run(work, {"load_s": 30})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no torch here')", "ended with exit code 1: no torch here"),
        ("pass", "ended with exit code 0"),
        (
            "import socket, sys; socket.socket(fileno=int(sys.argv[1])).send(b'x' * 99)",
            "no message",
        ),
        (
            "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(60)",
            "was killed by SIGKILL",
        ),
    ],
)
def test_an_engine_that_does_not_speak_is_dead(
    run: Callable[..., None], code: str, message: str
) -> None:
    async def work(client: EngineClient) -> None:
        with pytest.raises(EngineDead, match=message):
            await client.wait_ready()
        assert client.death is not None
        assert client.death.exit_code == 4

    run(work, command=(sys.executable, "-c", code))


@pytest.mark.parametrize(
    ("signum", "hint"), [("SIGKILL", "want of memory"), ("SIGBUS", "a disk that failed")]
)
def test_a_signal_that_ended_the_engine_is_explained(
    run: Callable[..., None], signum: str, hint: str
) -> None:
    """A cut file that is mapped, and memory that ran out, come as signals."""

    async def work(client: EngineClient) -> None:
        with pytest.raises(EngineDead, match=signum):
            await client.wait_ready()
        assert client.death is not None
        assert hint in client.death.hint

    code = f"import os, signal; os.kill(os.getpid(), signal.{signum})"
    run(work, command=(sys.executable, "-c", code))


def test_a_grandchild_that_keeps_the_socket_does_not_hide_the_death(
    run: Callable[..., None],
) -> None:
    code = (
        "import subprocess, sys;"
        "subprocess.Popen(['sleep', '3'], pass_fds=[int(sys.argv[1])]); sys.exit(7)"
    )

    async def work(client: EngineClient) -> None:
        begun = time.monotonic()
        with pytest.raises(EngineDead, match="exit code 7"):
            await client.wait_ready()
        assert time.monotonic() - begun < 2

    run(work, command=(sys.executable, "-c", code))


def test_a_message_that_cannot_be_handled_ends_every_wait(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of ours in a handler must not leave clients waiting for ever."""

    async def work(client: EngineClient) -> None:
        await client.wait_ready()
        session = client.open_session()
        session.submit(add(client, max_output=10_000))
        with pytest.raises(EngineDead, match="ZeroDivisionError"):
            while True:
                await session.events(timeout_s=5)
        await asyncio.wait_for(client.wait_ended(), 5)
        assert client.state == "dead"
        assert client.death is not None
        assert client.death.exit_code == 4

    monkeypatch.setattr(HeldRequests, "deliver", lambda self, event: 1 / 0)
    run(work, {"step_s": 0.01})


def test_a_preempted_request_waits_again_until_it_is_resumed(
    run: Callable[..., None],
) -> None:
    async def work(client: EngineClient) -> None:
        await client.wait_ready()
        session = client.open_session()
        session.submit(add(client, max_output=10_000))
        [admitted] = await session.events(timeout_s=5)
        assert admitted == Admitted(
            request_id=1, cached_tokens=1, pages=1, waiting=0, resumed=False
        )
        assert (client.held.num_running, client.held.num_waiting) == (1, 0)
        client._dispatch(Preempted(request_id=1))
        client._dispatch(Preempted(request_id=99))
        assert (client.held.num_running, client.held.num_waiting) == (0, 1)
        client._dispatch(Admitted(request_id=1, cached_tokens=9, pages=1, waiting=0, resumed=True))
        assert (client.held.num_running, client.held.num_waiting) == (1, 0)

    run(work, {"stall": True})


def test_an_engine_that_cannot_answer_yet_is_not_asked_for_its_stacks(
    run: Callable[..., None],
) -> None:
    """The signal would end it: nothing is registered while its first modules load."""

    async def work(client: EngineClient) -> None:
        report = await client.dump()
        assert (report.stacks, report.exit) == ("", None)
        assert client.state == "loading"

    run(work, command=(sys.executable, "-c", "import time; time.sleep(60)"))


def test_a_condemned_engine_is_not_heard(run: Callable[..., None]) -> None:
    """It may say that it is ready while its report is still being written."""

    async def work(client: EngineClient) -> None:
        await client.wait_ready()
        client.state = "restarting"
        client._condemned = True
        late = Ready(load_s=0, warm_up_s=0, dense_bytes=0, expert_bytes=0)
        assert client._receive(frame(late))
        assert client.state == "restarting"
        client.state = "ready"

    run(work)


def test_segments_that_the_system_refuses_are_named_and_leave_nothing_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NoSegments, match="bytes of shared memory for `bank` were refused"):
        create_segments({"snapshots": 4096, "bank": -1})
    assert len(list(Path("/proc/self/fd").iterdir())) == before
