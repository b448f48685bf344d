"""A server under load on a real GPU: does it hold what it held when it was ready, and nothing more? A plain script.

    PYTHONPATH=.src python tests/device/load_through_http.py [--profile NAME] [--set FIELD=VALUE ...] [--minutes 5]

`ft run` in a process of its own; 200 mixed requests (1 to 30,000 tokens, one to four at once, streams, whole answers,
second turns, clients that leave), the worst legal step (the longest prompts that fit, as many as may run), then as many
clients as may run, and two more, for the given time. Prints JSON lines; a `case` of `failed` is a failure: device
memory that grew or was ever above the plan's budget, an allocation, compilation or load of a kernel after ready, an
answer that is wrong, late or none, an engine that was started again. Exit code 1 then.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any  # JSON
from urllib.parse import urlsplit

from firmtoken.runtime.cli.bench import server
from firmtoken.runtime.cli.this_gpu import choose_gpu
from firmtoken.runtime.memory.gpus import FoundGpu, find_gpus

MIB = 2**20
LONGEST, SHORTEST = 30_000, 1
REQUESTS = 200
TOGETHER = 4
MORE_CLIENTS = 2
TURNS, LEAVERS, WHOLE = 0.25, 0.1, 0.3
"""Parts of all requests: second turns, clients that leave, answers that are not streamed."""
TURN_TOKENS = 40
BOUND_S = 120.0
"""For a whole answer; beyond it is a hang."""
WORST_BOUND_S = 400.0
GROWTH = 2 * MIB
"""What the driver hands out at once: less is not told apart from nothing."""
SETTLED_S = 2.0
"""Counters are sent once a second."""
COMPLAINTS = (" ERROR ", "Traceback", "was never awaited")
BEGUN = time.perf_counter()


def say(**line: object) -> None:
    print(json.dumps({**line, "at": round(time.perf_counter() - BEGUN, 1)}), flush=True)


@dataclass(slots=True)
class Verdict:
    """What was expected, and whether it was so."""

    failed: int = 0

    def expect(self, what: str, right: bool, **found: object) -> None:
        self.failed += not right
        say(case="passed" if right else "failed", what=what, **found)


class Memory:
    """What the driver has given since before the start; nothing where there is no GPU."""

    def __init__(self, *, gpu: bool) -> None:
        self._before = choose_gpu(find_gpus(), "auto") if gpu else None
        self.most = 0
        self._watching = threading.Event()
        if gpu:
            threading.Thread(target=self._watch, daemon=True).start()

    def held(self, when: str) -> int:
        """Bytes: of the one process with so much where the driver counts it, else of the whole device."""
        if self._before is None:
            return 0
        now = self._now()
        given = self._before.free - now.free
        known = {holder.pid for holder in self._before.holders}
        own = [holder.bytes for holder in now.holders if holder.pid not in known and holder.bytes]
        say(
            case="memory",
            when=when,
            device_mib=round(given / MIB, 1),
            process_mib=[round(one / MIB, 1) for one in own],
        )
        return own[0] if len(own) == 1 else given

    def _now(self) -> FoundGpu:
        assert self._before is not None
        now = choose_gpu(find_gpus(), self._before.uuid)
        assert now is not None, "no GPU leaves"
        return now

    def _watch(self) -> None:
        """The most that was ever given, the start included."""
        assert self._before is not None
        while not self._watching.wait(0.05):
            self.most = max(self.most, self._before.free - self._now().free)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request, by token ids."""

    prompt: Sequence[int]
    output: int
    stream: bool = True
    leaves_after_s: float | None = None
    bound_s: float = BOUND_S


@dataclass(slots=True)
class Server:
    """Its address, and what its clients met."""

    address: str
    met: Counter[str] = field(default_factory=Counter)
    cached_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str) -> Any:
        connection = self._connect(BOUND_S)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    def ask(self, ask: Ask) -> None:
        """Whatever comes of it is noted, nothing raised."""
        try:
            kind = self._exchange(ask)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            kind = "hang" if isinstance(error, TimeoutError) else "broken"
            self._note(f"{kind}: {len(ask.prompt)} tokens: {error!r}")
        with self._lock:
            self.met[kind] += 1

    def _connect(self, bound_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=bound_s)

    def _exchange(self, ask: Ask) -> str:
        body = {
            "prompt": list(ask.prompt),
            "max_tokens": ask.output,
            "temperature": 1.0,
            "top_p": 0.95,
            "ignore_eos": True,
            "stream": ask.stream,
        }
        if ask.stream:
            body["stream_options"] = {"include_usage": True}
        # The socket's timeout counts from one piece to the next; a whole answer is read against a clock.
        end = time.monotonic() + ask.bound_s
        connection = self._connect(ask.bound_s)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            if ask.leaves_after_s is not None:
                time.sleep(ask.leaves_after_s)
                return "left"
            answer = connection.getresponse()
            if answer.status != 200:
                self._note(f"{answer.status}: {answer.read(300)!r}")
                return "refused"
            usage = _usage(answer, end) if ask.stream else json.loads(answer.read())["usage"]
        finally:
            connection.close()
        if usage["completion_tokens"] != ask.output or usage["prompt_tokens"] != len(ask.prompt):
            self._note(f"{len(ask.prompt)} tokens and {ask.output} were asked for: {usage}")
            return "wrong"
        with self._lock:
            self.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
        return "answered"

    def _note(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)


def _usage(answer: http.client.HTTPResponse, end: float) -> Any:
    """Of a stream that ends as it must."""
    usage = None
    for line in answer:
        if time.monotonic() > end:
            raise TimeoutError("the stream goes on and on")
        if line.startswith(b"data: {"):
            event = json.loads(line[len(b"data: ") :])
            if "error" in event:
                raise ValueError(event["error"])
            usage = event.get("usage") or usage
        elif line.startswith(b"data: [DONE]"):
            if usage is None:
                raise ValueError("a stream without usage")
            return usage
    raise ValueError("a stream without an end")


class Traffic:
    """Requests of all kinds, by a seed."""

    def __init__(self, seed: int, *, vocabulary: int, longest: int) -> None:
        self._chance = random.Random(seed)
        self._vocabulary = vocabulary
        self._longest = longest
        self._before: list[int] = []

    def one(self) -> Ask:
        chance = self._chance
        output = chance.randrange(1, 65)
        room = self._longest - output
        if self._before and chance.random() < TURNS and len(self._before) + TURN_TOKENS <= room:
            prompt = [*self._before, *self._tokens(TURN_TOKENS)]
        else:
            most = min(LONGEST, room)
            prompt = self._tokens(int(SHORTEST * (most / SHORTEST) ** chance.random()))
        self._before = prompt
        leaves = chance.random() < LEAVERS
        return Ask(
            prompt=prompt,
            output=output,
            stream=chance.random() >= WHOLE,
            leaves_after_s=0.5 * chance.random() if leaves else None,
        )

    def longest(self, output: int) -> Ask:
        return Ask(
            prompt=self._tokens(self._longest - output), output=output, bound_s=WORST_BOUND_S
        )

    def together(self) -> int:
        return self._chance.randrange(1, TOGETHER + 1)

    def _tokens(self, count: int) -> list[int]:
        # Special tokens are few, and where they are differs.
        return [self._chance.randrange(self._vocabulary // 2) for _ in range(count)]


def mixed(server: Server, traffic: Traffic, count: int) -> None:
    """One to four at once, until so many have been asked."""
    while count > 0:
        together = min(count, traffic.together())
        at_once(server, [traffic.one() for _ in range(together)])
        count -= together


def at_once(server: Server, asks: Sequence[Ask]) -> None:
    with ThreadPoolExecutor(len(asks)) as threads:
        list(threads.map(server.ask, asks))


def under_load(server: Server, plan: Any, clients: int, seconds: float, longest: int) -> None:
    """Clients that ask again as soon as they have an answer."""
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        traffic = traffic_of(plan, 1000 + number, longest)
        while time.monotonic() < end:
            server.ask(traffic.one())

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(client, range(clients)))


def traffic_of(plan: Any, seed: int, longest: int) -> Traffic:
    return Traffic(seed, vocabulary=int(plan["model"]["geometry"]["vocab_size"]), longest=longest)


def judge(served: Server, verdict: Verdict, log: Path) -> None:
    """What all clients met, and what the engine counted."""
    time.sleep(SETTLED_S)
    stats, health = served.get("/v1/stats"), served.get("/health")
    met = dict(served.met)
    bad = {kind: met.get(kind, 0) for kind in ("hang", "broken", "refused", "wrong")}
    verdict.expect("every answer is whole", not any(bad.values()), **met, first=served.wrong[:5])
    verdict.expect("second turns find the first", served.cached_tokens > 0)
    verdict.expect("nothing came late", not any(stats["late"].values()), **stats["late"])
    verdict.expect(
        "everybody has left", stats["running"] == stats["waiting"] == 0, state=health["state"]
    )
    verdict.expect("one engine", health["restarts"] == 0 and health["state"] == "ready")
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    wrong = [line for line in lines if any(sign in line for sign in COMPLAINTS)]
    verdict.expect("the log complains of nothing", not wrong, lines=wrong[:5])
    for line in lines:
        if "device memory" in line:
            say(case="log", line=line)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", default="tests/device/h200-synthetic.yaml")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--no-gpu", action="store_true", help="to try the script itself")
    options = parser.parse_args()
    verdict = Verdict()
    memory = Memory(gpu=not options.no_gpu)
    log = Path(tempfile.mkdtemp(prefix="ft-load-")) / "server.log"
    with server(options.profile, [*options.set, f"server.log_file={log}"]) as process:
        served = Server(process.address)
        plan = served.get("/v1/plan")
        ledger, longest = plan["memory"]["device"], plan["context"]["effective"]
        requests = plan["schedule"]["max_num_seqs"]
        say(case="ready", s=round(process.start_s, 1), budget_mib=ledger["budget"] / MIB)
        ready = memory.held("ready")
        traffic = traffic_of(plan, 7, longest)
        mixed(served, traffic, options.requests)
        verdict.expect(
            "no growth over mixed requests",
            memory.held("mixed requests") <= ready + GROWTH,
            requests=options.requests,
            **served.met,
        )
        time.sleep(SETTLED_S)
        say(case="stats", late=served.get("/v1/stats")["late"])
        at_once(served, [traffic.longest(output=16) for _ in range(requests)])
        verdict.expect("no growth over the worst step", memory.held("worst step") <= ready + GROWTH)
        under_load(served, plan, requests + MORE_CLIENTS, 60 * options.minutes, longest)
        verdict.expect(
            "no growth under load",
            memory.held("load") <= ready + GROWTH,
            minutes=options.minutes,
            **served.met,
        )
        verdict.expect(
            "never above the budget",
            memory.most <= ledger["budget"],
            most_mib=round(memory.most / MIB, 1),
            budget_mib=ledger["budget"] / MIB,
        )
        judge(served, verdict, log)
    return 1 if verdict.failed else 0


if __name__ == "__main__":
    sys.exit(main())
