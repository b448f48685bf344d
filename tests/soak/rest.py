"""A server without clients: what it must have given back, and how much it holds."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any  # Any: JSON

import httpx
from served import ServedProcess, Usage
from tally import Tally

QUIET_S = 10.0
"""From the last client's end to nothing running, nothing waiting and every page free."""
KEEP_ALIVE_S = 8.0
"""uvicorn closes a silent connection after 5 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """One measurement."""

    quiet_after_s: float
    usages: tuple[Usage, Usage]
    """Of server and engine."""
    stats: dict[str, Any]
    """The engine's counters."""

    def numbers(self) -> dict[str, Any]:
        """For the report."""
        return {
            "quiet_after_s": round(self.quiet_after_s, 2),
            **{
                f"{name}_{what}": value
                for name, usage in zip(("server", "engine"), self.usages, strict=True)
                for what, value in (
                    ("descriptors", usage.descriptors),
                    ("threads", usage.threads),
                    ("rss_mib", round(usage.rss_mib, 1)),
                    ("anonymous_mib", round(usage.anonymous_mib, 1)),
                    ("cpu_s", round(usage.cpu_s, 1)),
                )
            },
            "stats": self.stats,
        }


class Resting:
    """Compares every pause with the first one."""

    def __init__(self, server: ServedProcess, tally: Tally, *, state_slots: int) -> None:
        self._server = server
        self._tally = tally
        self._state_slots = state_slots
        """All that requests may hold."""
        self._first: Rest | None = None

    async def measure(self) -> Rest:
        """Wait until it is quiet, then look; all clients have closed their connections."""
        began = time.monotonic()
        async with httpx.AsyncClient(base_url=self._server.address, timeout=QUIET_S) as http:
            await self._until_quiet(http, began + QUIET_S)
            quiet_after_s = time.monotonic() - began
            stats = await self._stats(http, began + QUIET_S)
        usages = await self._usages()
        rest = Rest(quiet_after_s=quiet_after_s, usages=usages, stats=stats)
        self._first = self._first or rest
        return rest

    async def _until_quiet(self, http: httpx.AsyncClient, end: float) -> None:
        while True:
            health = (await http.get("/health")).json()
            if health["running"] == health["waiting"] == 0:
                return
            if time.monotonic() > end:
                self._tally.fault(f"without clients, after {QUIET_S:.0f} s: {health}")
                return
            await asyncio.sleep(0.02)

    async def _stats(self, http: httpx.AsyncClient, end: float) -> dict[str, Any]:
        """The engine's counters, once they say that all is free: they come once a second."""
        while True:
            reply = await http.get("/v1/stats")
            stats: dict[str, Any] = reply.json()
            # 503: an engine that has just come back has counted nothing yet.
            held = f"status {reply.status_code}" if reply.is_error else self._held(stats)
            if not held:
                return stats
            if time.monotonic() > end:
                self._tally.fault(f"without clients: {held}, {stats}")
                return stats
            await asyncio.sleep(0.1)

    def _held(self, stats: dict[str, Any]) -> str:
        if stats["running"] or stats["waiting"]:
            return "something runs or waits"
        if stats["pages_free"] + stats["pages_cached"] != stats["pages_total"]:
            return "pages are held"
        if stats["state_slots_free"] != self._state_slots:
            return f"of {self._state_slots} state slots some are held"
        return ""

    async def _usages(self) -> tuple[Usage, Usage]:
        """Once descriptors and threads are as few as they were."""
        end = time.monotonic() + KEEP_ALIVE_S
        while True:
            usages = self._server.usage()
            if self._first is None:
                if time.monotonic() > end:  # whatever is still open now stays open
                    return usages
            elif not (more := self._more(usages)):
                return usages
            elif time.monotonic() > end:
                self._tally.fault("without clients: " + ", ".join(more))
                return usages
            await asyncio.sleep(0.1)

    def _more(self, usages: tuple[Usage, Usage]) -> list[str]:
        assert self._first is not None
        return [
            f"{name} has {after} {what}, at first {before}"
            for name, now, first in zip(
                ("server", "engine"), usages, self._first.usages, strict=True
            )
            for what, after, before in (
                ("descriptors", now.descriptors, first.descriptors),
                ("threads", now.threads, first.threads),
            )
            if after > before
        ]
