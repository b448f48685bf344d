"""Dumps that many ask for at once: one look for all, and never in the way of the next engine."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.runtime.waiting import until, until_healthy

from firmtoken.runtime.server.errors import Draining
from firmtoken.runtime.server.joined import Joined
from firmtoken.runtime.server.report import ends

Serve = Callable[..., Any]
URL = "/v1/completions"
ANSWERED = {"prompt": "abc", "max_tokens": 3}
ENDLESS = {"prompt": "abc", "max_tokens": 900, "ignore_eos": True}


def dump(running: Any) -> httpx.Response:
    return httpx.get(f"{running.address}/v1/dump", timeout=60)


def test_dumps_do_not_keep_the_next_engine_away(serve: Serve, tmp_path: Path) -> None:
    """A frozen engine answers none of them: one after another they would take a second each."""
    running = serve({"step_s": 0.02, "due_s": 1.0}, most_restarts=3, reports=tmp_path / "reports")
    with ThreadPoolExecutor(13) as pool:
        asked = pool.submit(httpx.post, f"{running.address}{URL}", json=ENDLESS, timeout=60)
        until(lambda: running.service.engine.held.num_running == 1)
        os.kill(running.service.engine.engine_pid, signal.SIGSTOP)
        frozen_at = time.monotonic()
        dumps = [pool.submit(dump, running) for _ in range(12)]
        assert asked.result().status_code == 503
        until_healthy(running.address)
        assert time.monotonic() - frozen_at < 1.0 + 5.0
        assert {one.result().status_code for one in dumps} == {200}
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 200


def test_work_that_several_ask_for_is_done_once() -> None:
    begun = []

    async def work() -> int:
        begun.append(len(begun))
        await asyncio.sleep(0.05)
        return begun[-1]

    async def main() -> None:
        joined = Joined(work)
        first, leaves, third = (asyncio.create_task(joined.result()) for _ in range(3))
        await asyncio.sleep(0.01)
        leaves.cancel()
        assert (await first, await third) == (0, 0)
        assert leaves.cancelled()
        assert await joined.result() == 1

    asyncio.run(main())
    assert begun == [0, 1]


def test_work_that_is_cancelled_is_told_to_whoever_waits() -> None:
    async def main() -> None:
        joined = Joined(lambda: asyncio.sleep(60))
        waiting = asyncio.create_task(joined.result())
        await asyncio.sleep(0.01)
        await joined.cancel()
        with pytest.raises(Draining):
            await waiting

    asyncio.run(main())


def test_a_report_that_cannot_be_made_costs_no_restart(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firmtoken.runtime.server.life.describe_steps", lambda *_: 1 // 0)
    script = {"die_after": 0, "once": str(tmp_path / "died")}
    running = serve(script, most_restarts=3, reports=tmp_path / "reports")
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 503
    until_healthy(running.address)
    assert httpx.post(f"{running.address}{URL}", json=ANSWERED).status_code == 200
    assert ends(tmp_path / "reports") == []
