"""All clients of one server: many at once, crowds, rude ones, one who watches `/health`, one who kills the engine."""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from dataclasses import replace

import httpx
from exchange import Answered, Ask, Exchange, Heard, Leave, streamed
from probes import CHAT, COMPLETIONS
from served import ServedProcess
from tally import Tally
from traffic import Traffic

HEALTH_S = 5.0
MOST_KILLS, WINDOW_S = 3, 610.0
"""As many deaths in ten minutes the server makes good."""
BACK_S = 30.0
"""From the engine's death to the next answer."""
CONVERSATIONS = 0.06
TURNS = 4
CROWD_BEYOND_QUEUE = 8
LAST_CROWD_S = 10.0
HERD_EVERY = 5
"""Periods of work: its answers are long."""


class Clients:
    """`work` runs them for a while; nothing of theirs is open when it returns."""

    def __init__(
        self,
        server: ServedProcess,
        tally: Tally,
        probes: tuple[Ask, ...],
        *,
        seed: int,
        count: int,
        bound_s: float,
        kill_every_s: float | None,
        herds: bool,
    ) -> None:
        self._server = server
        self._tally = tally
        self._probes = probes
        self._bound_s = bound_s
        """From the first try to the end of the answer, refusals and waiting included."""
        self._kill_every_s = kill_every_s
        self._herds = herds
        self._periods = 0
        self._draw = random.Random(f"clients {seed}")
        with httpx.Client(base_url=server.address, timeout=60) as http:
            plan = http.get("/v1/plan").json()
            self._model = http.get("/v1/models").json()["data"][0]["id"]
        self._context: int = plan["context"]["effective"]
        self._requests: int = plan["schedule"]["max_num_seqs"]
        self._queue: int = plan["admission"]["queue"]
        self._reserve: int = plan["admission"]["output_reserve"]
        self.state_slots: int = plan["kv_cache"]["state_slots"] - 1
        """Slot 0 is of padded rows."""
        self._traffics = [
            self._traffic(random.Random(f"client {seed} {number}")) for number in range(count)
        ]
        self._crowd_traffic = self._traffic(random.Random(f"crowd {seed}"))
        self._down_until = 0.0
        self._kills: list[float] = []
        self.recoveries: list[float] = []
        """Seconds from each kill of the engine to the next answer."""

    async def warm_up(self) -> None:
        """One crowd, so that every thread that will ever be there is there."""
        exchange = self._exchange()
        await self._crowd(exchange)
        await exchange.close()

    async def work(self, until: float) -> None:
        """Everybody, until that moment; then each ends what it has begun."""
        exchange = self._exchange()
        jobs = [self._client(exchange, traffic, until) for traffic in self._traffics]
        jobs += [self._crowds(exchange, until), self._rude(until), self._watch_health(until)]
        if self._herds and self._periods % HERD_EVERY == 0:
            jobs.append(self._herd(exchange))
        self._periods += 1
        if self._kill_every_s is not None:
            jobs.append(self._kill(exchange, until, self._kill_every_s))
        await asyncio.gather(*jobs)
        await exchange.close()

    async def fill_everything(self) -> None:
        """As many at once as may run, then the longest: every slot and every page is there."""
        exchange = self._exchange()
        size = max(1, self._context // self._requests - 64)
        at_once = [self._whole(size, 16, kind="fills a slot") for _ in range(self._requests)]
        await asyncio.gather(*(self._one(exchange, ask, self._draw) for ask in at_once))
        await self._one(
            exchange, self._whole(self._context - 1, 1, kind="fills the pool"), self._draw
        )
        await exchange.close()

    def _whole(self, size: int, output: int, *, kind: str) -> Ask:
        body = {
            "prompt": self._crowd_traffic.texts.token_ids(size),
            "max_tokens": output,
            "ignore_eos": True,
        }
        must = Answered(prompt_tokens=size, output_tokens=output)
        return Ask(kind=kind, path=COMPLETIONS, body=body, must=must)

    def _traffic(self, draw: random.Random) -> Traffic:
        return Traffic(
            draw,
            self._probes,
            model=self._model,
            context=self._context,
            most=self._queue + self._requests,
        )

    def _exchange(self) -> Exchange:
        # A silent connection is ours to close first: the server's own moment is 5 s.
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=20, keepalive_expiry=2
        )
        http = httpx.AsyncClient(
            base_url=self._server.address, timeout=self._bound_s, limits=limits
        )
        return Exchange(http, self._bound_s, outages=self._kill_every_s is not None)

    async def _one(self, exchange: Exchange, ask: Ask, draw: random.Random) -> Heard:
        heard = await exchange.run(ask, draw)
        self._tally.take(ask, heard)
        return heard

    async def _client(self, exchange: Exchange, traffic: Traffic, until: float) -> None:
        while time.monotonic() < until and self._server.exit_code is None:
            if traffic.draw.random() < CONVERSATIONS:
                await self._converse(exchange, traffic)
            else:
                await self._one(exchange, traffic.next(), traffic.draw)

    async def _converse(self, exchange: Exchange, traffic: Traffic) -> None:
        """Each turn begins with all that was said: prefixes of prefixes, those of the probes among them."""
        messages = traffic.opening()
        for _ in range(TURNS):
            heard = await self._one(exchange, traffic.follow_up(messages), traffic.draw)
            if 0 not in heard.texts or heard.error is not None:
                return
            messages.append({"role": "assistant", "content": heard.texts[0]})
            messages.append({"role": "user", "content": traffic.texts.question()})

    async def _crowds(self, exchange: Exchange, until: float) -> None:
        while True:
            await asyncio.sleep(self._draw.uniform(5, 20))
            if time.monotonic() > until - LAST_CROWD_S or self._server.exit_code is not None:
                return
            await self._crowd(exchange)

    async def _crowd(self, exchange: Exchange) -> None:
        """More than may wait; some leave the queue, some ask what is known."""
        asks = []
        for number in range(self._queue + self._requests + CROWD_BEYOND_QUEUE):
            ask = self._crowd_traffic.short() if number % 3 else self._crowd_traffic.probe()
            if number % 4 == 1:
                leave = Leave(after="silence", delay_s=2 * self._draw.random())
                ask = replace(ask, kind="leaves a crowd", leave=leave)
            asks.append(ask)
        await asyncio.gather(
            *(self._one(exchange, ask, random.Random(f"{self._draw.random()}")) for ask in asks)
        )

    async def _herd(self, exchange: Exchange) -> None:
        """As many as may run outgrow what was reserved for them together: in a small pool the youngest give way."""
        output = min(self._reserve + self._reserve // 2, self._context - 64)
        asks = [self._whole(20, output, kind="herd") for _ in range(self._requests)]
        draws = [random.Random(f"{self._draw.random()}") for _ in asks]
        await asyncio.gather(
            *(self._one(exchange, ask, draw) for ask, draw in zip(asks, draws, strict=True))
        )

    async def _rude(self, until: float) -> None:
        """Half requests, and whole ones whose connection is reset at once."""
        host, _, port = self._server.address.removeprefix("http://").rpartition(":")
        while time.monotonic() < until and self._server.exit_code is None:
            ask = streamed(self._crowd_traffic.chat(), stream=self._draw.random() < 0.5)
            assert isinstance(ask.body, Mapping)
            body = json.dumps(ask.body).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
            message = head.encode() + body
            cut = self._draw.choice((0, 10, len(head), len(message) // 2, len(message)))
            try:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(message[:cut])
                await asyncio.sleep(self._draw.choice((0, 0.01, 0.3, 1)))
                writer.transport.abort()  # a reset, where httpx says goodbye
            except OSError as error:
                self._tally.fault(f"a connection was not taken: {error}")
            self._tally.outcomes["rude: left"] += 1
            await asyncio.sleep(self._draw.uniform(0.1, 1))

    async def _watch_health(self, until: float) -> None:
        async with httpx.AsyncClient(base_url=self._server.address, timeout=HEALTH_S) as http:
            while time.monotonic() < until and self._server.exit_code is None:
                began = time.monotonic()
                try:
                    status = (await http.get("/health")).status_code
                except httpx.HTTPError as error:
                    self._tally.fault(f"/health within {HEALTH_S:.0f} s: {error!r}")
                    continue
                self._tally.at_worst("health", time.monotonic() - began, "")
                if status != 200 and not (status == 503 and began < self._down_until):
                    self._tally.fault(f"/health is {status}")
                await asyncio.sleep(0.3)

    async def _kill(self, exchange: Exchange, until: float, every_s: float) -> None:
        """kill -9 of the engine at random moments; it must be back in time."""
        while True:
            await asyncio.sleep(self._draw.uniform(0.5, 1.5) * every_s)
            began = time.monotonic()
            if began > until or self._server.exit_code is not None:
                return
            if len(self._kills) >= MOST_KILLS and began < self._kills[-MOST_KILLS] + WINDOW_S:
                continue  # one more and the server leaves, as it should
            self._kills.append(began)
            self._down_until = began + BACK_S
            if self._server.kill_engine() is None:
                self._tally.fault("there was no engine to kill")
                continue
            sent = exchange.note_killed(began)
            self._tally.outcomes[f"kill: {'idle' if sent == 0 else 'busy'}"] += 1
            await self._recover(began)

    async def _recover(self, began: float) -> None:
        body = {"prompt": [300, 301, 302], "max_tokens": 1}
        async with httpx.AsyncClient(base_url=self._server.address, timeout=BACK_S) as http:
            while time.monotonic() - began < BACK_S:
                try:
                    status = (await http.post(COMPLETIONS, json=body)).status_code
                    if status in (200, 429):  # a crowd may have been quicker
                        self.recoveries.append(round(time.monotonic() - began, 2))
                        self._down_until = 0.0
                        return
                except httpx.HTTPError:
                    pass  # counted below: what matters is when it answers
                await asyncio.sleep(0.2)
        self._tally.fault(f"no answer within {BACK_S:.0f} s of the engine's death")
