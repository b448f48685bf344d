"""500 requests, a third of whose clients leave: what they held is free afterwards, and the others' text is right."""

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal  # Any: JSON

import httpx
import pytest

NOUNS = Path(__file__).resolve().parents[3] / "profiles/weights/tiny-moe/training/nouns.json"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
NUM_REQUESTS = 500
NUM_CLIENTS = 16
NUM_TEXTS = 20
NEW_TOKENS = 5
CONTEXT = 4096
QUIET_S = 10.0
PATIENCE_S = 150.0
STILL_S = 1.0
SHORT_ENTRIES, LONG_ENTRIES = 2, 25
MUCH = 1000

Way = Literal["before anything", "in its prefill", "in its decode", "without a stream"]
WAYS: tuple[Way, ...] = (
    "before anything",
    "in its prefill",
    "in its decode",
    "without a stream",
)


@dataclass(slots=True, kw_only=True)
class Load:
    """What came of all requests."""

    left: Counter[str] = field(default_factory=Counter)
    """How, and what had been heard: nothing, `role` (admitted) or `text`."""
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """Wanted and found."""
    num_right: int = 0
    num_ended: int = 0
    """Those that had ended before their client could leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a process holds."""

    descriptors: int
    threads: int


def known(text: str, *, stream: bool) -> dict[str, Any]:
    """No question: its continuation depends on all that came before, so that a wrong state shows."""
    body = {"prompt": text, "max_tokens": NEW_TOKENS, "temperature": 0}
    return {**body, "ignore_eos": True, "stream": stream}


def endless(text: str, way: Way) -> dict[str, Any]:
    """What would hold its pages for a long time if nobody aborted it."""
    body = {"max_tokens": MUCH, "ignore_eos": True, "stream": way != "without a stream"}
    if way == "in its prefill":  # chats say when they are admitted
        return {**body, "messages": [{"role": "user", "content": text}]}
    return {**body, "prompt": text}


@pytest.fixture(scope="module")
def entries() -> list[str]:
    """Of a dictionary."""
    nouns: dict[str, list[str]] = json.loads(NOUNS.read_text())
    return [f"{noun}: {gloss}." for noun, glosses in nouns.items() for gloss in glosses]


@pytest.fixture(scope="module")
def cold(serve: Callable[..., Any], entries: list[str]) -> dict[str, str]:
    """Text to continuation, by a server that caches nothing and has nobody else to serve."""
    draw = random.Random(42)
    answers = {}
    with (
        serve("tiny-cpu", "serving.context=4k", "cache.type=none") as address,
        httpx.Client(base_url=address, timeout=PATIENCE_S) as http,
    ):
        for _ in range(NUM_TEXTS):
            text = " ".join(draw.sample(entries, 8))
            answer = http.post(COMPLETIONS, json=known(text, stream=False)).json()
            answers[text] = answer["choices"][0]["text"]
    return answers


@pytest.fixture(scope="module")
def address(serve: Callable[..., Any], cold: dict[str, str]) -> Iterator[str]:
    with serve("tiny-cpu", "serving.context=4k", "serving.pool=4k") as address:
        yield address


@pytest.fixture(scope="module")
def before(address: str, cold: dict[str, str]) -> list[Held]:
    """Of server and engine, once every thread is there that there will be."""
    everyone = [*cold] * 2
    asyncio.run(survive_all(address, everyone))
    wait_quiet(address)
    return still()


@pytest.fixture(scope="module")
def load(address: str, before: list[Held], cold: dict[str, str], entries: list[str]) -> Load:
    """All 500; nothing of theirs is open when this is done."""
    load = Load()
    asyncio.run(run_all(address, cold, entries, load))
    return load


async def survive_all(address: str, texts: list[str]) -> None:
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as http:
        asks = [http.post(COMPLETIONS, json=known(each, stream=False)) for each in texts]
        assert {reply.status_code for reply in await asyncio.gather(*asks)} == {200}


async def run_all(address: str, cold: dict[str, str], entries: list[str], load: Load) -> None:
    draw = random.Random(41)
    leaves = [number < NUM_REQUESTS // 3 for number in range(NUM_REQUESTS)]
    draw.shuffle(leaves)
    rest = iter(enumerate(leaves))

    async def client(http: httpx.AsyncClient) -> None:
        for number, is_leaving in rest:
            if is_leaving:
                await leave(http, WAYS[number % len(WAYS)], draw, [*cold], entries, load)
            else:
                text = draw.choice([*cold])
                await survive(http, text, cold[text], draw, load)

    limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, limits=limits) as http:
        await asyncio.gather(*(client(http) for _ in range(NUM_CLIENTS)))


async def survive(
    http: httpx.AsyncClient, text: str, wanted: str, draw: random.Random, load: Load
) -> None:
    stream = draw.random() < 0.5
    reply = await http.post(COMPLETIONS, json=known(text, stream=stream))
    assert reply.status_code == 200, reply.text
    if stream:
        *events, end = reply.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    else:
        choices = reply.json()["choices"]
    found = "".join(choice["text"] for choice in choices)
    assert choices[-1]["finish_reason"] == "length"
    if found == wanted:
        load.num_right += 1
    else:
        load.wrong.append((wanted, found))


async def leave(
    http: httpx.AsyncClient,
    way: Way,
    draw: random.Random,
    texts: list[str],
    entries: list[str],
    load: Load,
) -> None:
    """Ask for much, and go away at a random moment of what the way says."""
    heard = ["nothing"]
    more = " ".join(draw.choices(entries, k=LONG_ENTRIES if "prefill" in way else SHORT_ENTRIES))
    body = endless(f"{draw.choice(texts)} {more}", way)
    path = CHAT if "messages" in body else COMPLETIONS
    patience = draw.random() * {"before anything": 0.3, "without a stream": 1.5}.get(way, 0.3)
    waits_for = {"in its prefill": "role", "in its decode": "text"}.get(way, "nothing")
    leaving = asyncio.timeout(patience if waits_for == "nothing" else None)
    try:
        async with leaving, http.stream("POST", path, json=body) as reply:
            assert reply.status_code == 200
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    note(json.loads(line.removeprefix("data: ")), heard)
                if heard[-1] == waits_for and leaving.when() is None:
                    leaving.reschedule(asyncio.get_running_loop().time() + patience)
    except TimeoutError:
        assert leaving.expired()
        load.left[f"{way}: {heard[-1]}"] += 1
    else:
        load.num_ended += 1


def note(event: dict[str, Any], heard: list[str]) -> None:
    assert "error" not in event
    [choice] = event["choices"]
    text = choice["text"] if "text" in choice else choice["delta"].get("content")
    heard.append("text" if text or "text" in heard else "role")


def wait_quiet(address: str) -> dict[str, Any]:
    """The engine's counters, once nothing runs and nothing waits."""
    end = time.monotonic() + QUIET_S
    while True:
        health = httpx.get(f"{address}/health").json()
        stats = httpx.get(f"{address}/v1/stats").json()
        quiet = health["running"] == health["waiting"] == stats["running"] == stats["waiting"] == 0
        if quiet or time.monotonic() > end:
            assert quiet, (health, stats)
            return dict(stats)
        time.sleep(0.1)


def still() -> list[Held]:
    """What they hold when no connection of ours is left that the server has yet to close."""
    before: list[Held] = []
    now = held()
    while before != now:
        time.sleep(STILL_S)
        before, now = now, held()
    return now


def held() -> list[Held]:
    """Of the server, which is a child of this process, and of its engine."""
    [server] = children(os.getpid(), "firmtoken.runtime.cli.run")
    [engine] = children(server, "firmtoken.runtime.engine.spawned")
    return [
        Held(
            descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
            threads=len(list(Path(f"/proc/{pid}/task").iterdir())),
        )
        for pid in (server, engine)
    ]


def children(pid: int, module: str) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [each for each in found if module in Path(f"/proc/{each}/cmdline").read_text()]


@pytest.mark.report(41, 42)
def test_a_third_leaves_in_every_way_and_at_every_stage(load: Load) -> None:
    assert load.left.total() + load.num_ended == NUM_REQUESTS // 3
    for way in WAYS:
        assert sum(count for key, count in load.left.items() if key.startswith(way)) >= 20
    for stage in ("before anything: nothing", "in its prefill: role", "in its decode: text"):
        assert load.left[stage] >= 10


@pytest.mark.report(41, 42)
def test_all_pages_and_slots_are_free_after_a_third_left(
    load: Load, address: str, before: list[Held]
) -> None:
    stats = wait_quiet(address)
    assert stats["pages_free"] + stats["pages_cached"] == stats["pages_total"]
    # Nobody went on for those who had left: that would be some 1,000 tokens for each.
    assert stats["output_tokens"] < MUCH * NUM_REQUESTS // 3 // 5
    # What the counters say is so: as many as may run, and then one that needs the whole pool.
    with httpx.Client(base_url=address, timeout=PATIENCE_S) as http:
        plan = http.get("/v1/plan").json()
        assert stats["state_slots_free"] == plan["kv_cache"]["state_slots"] - 1
        whole = {"prompt": [300] * (CONTEXT - 1), "max_tokens": 1}
        assert http.post(COMPLETIONS, json=whole).status_code == 200


@pytest.mark.report(41, 42)
def test_no_descriptor_and_no_thread_is_left_behind(
    load: Load, address: str, before: list[Held]
) -> None:
    wait_quiet(address)
    assert still() == before


@pytest.mark.report(41, 42, 53)
def test_those_who_stayed_are_answered_as_if_they_were_alone(load: Load) -> None:
    assert load.wrong == []
    assert load.num_right == NUM_REQUESTS - NUM_REQUESTS // 3
