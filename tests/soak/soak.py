"""A soak of `ft run`: clients of every kind for as long as is asked, then numbers, and 1 if anything was wrong.

    python tests/soak/soak.py --minutes 60 --seed 7 [--profile tiny-cpu] [--set FIELD=VALUE] [--kill-engine-every 60]

Every minute all clients pause, and what they held must be free. The last line of stdout is the report, as JSON.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: JSON

import httpx
from clients import Clients
from exchange import Ask
from probes import TEXT_FIELDS, answered_alone, draw_probes, is_greedy
from rest import Rest, Resting
from served import ServedProcess, cpu_share
from tally import Difference, Tally

IDLE_S = 5.0
MOST_IDLE_CORES = 0.05
MOST_GROWTH_MIB = 96.0
"""Of either process, over the run: caches of the allocator settle within it."""
MOST_SAMPLED_SHARE = 0.03
"""Of the sampled probes: a draw may lie within the tolerance of a boundary (D19)."""
CHECK_EVERY_S = 60.0
SECOND_OPINION_S = 900
LONG_MINUTES = 4
"""Shorter runs have no time for answers of 1,500 tokens."""


def main() -> int:
    """The exit code."""
    options = _options()
    folder = options.out or Path(tempfile.mkdtemp(prefix="ft-soak-"))
    report = asyncio.run(Soak(options, folder).run())
    (folder / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False))
    print(json.dumps(report))
    return 1 if report["num_faults"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--profile", default="tiny-cpu")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--bound", type=float, default=180, help="seconds to the end of an answer")
    parser.add_argument("--kill-engine-every", type=float, metavar="SECONDS")
    parser.add_argument("--debug", action="store_true", help="`ft run --debug`: check invariants")
    parser.add_argument("--out", type=Path, help="folder for log and report")
    return parser.parse_args()


class Soak:
    """One run."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._tally = Tally()

    async def run(self) -> dict[str, Any]:
        """The report."""
        began = time.monotonic()
        probes = self._probes()
        server = ServedProcess(
            self._options.profile, self._options.set, self._folder, debug=self._options.debug
        )
        try:
            numbers, rests = await self._load(server, probes)
        finally:
            exit_code = server.stop()
        if exit_code != 0:
            self._tally.fault(f"the server ended with {exit_code} after SIGTERM")
        kills = self._options.kill_engine_every is not None
        for line in [] if kills else server.complaints():
            self._tally.fault(f"log: {line}")
        self._judge_growth(rests)
        return {
            "minutes": self._options.minutes,
            "seed": self._options.seed,
            "clients": self._options.clients,
            "bound_s": self._options.bound,
            "profile": [self._options.profile, *self._options.set],
            "wall_s": round(time.monotonic() - began, 1),
            **self._tally.numbers(),
            **numbers,
            "first_rest": rests[0].numbers(),
            "last_rest": rests[-1].numbers(),
            "rests": [rest.numbers() for rest in rests],
            "log": str(server.log),
        }

    def _probes(self) -> tuple[Ask, ...]:
        """Answers of a server without a cache, without load."""
        overrides = [*self._options.set, "cache.type=none"]
        lone = ServedProcess(self._options.profile, overrides, self._folder / "alone", debug=False)
        try:
            with httpx.Client(base_url=lone.address, timeout=120) as http:
                context = http.get("/health").json()["effective_context"]
                longest = min(2000, context // 4)
                return tuple(answered_alone(draw_probes(self._options.seed, longest), http))
        finally:
            lone.stop()

    async def _load(
        self, server: ServedProcess, probes: tuple[Ask, ...]
    ) -> tuple[dict[str, Any], list[Rest]]:
        clients = Clients(
            server,
            self._tally,
            probes,
            seed=self._options.seed,
            count=self._options.clients,
            bound_s=self._options.bound,
            kill_every_s=self._options.kill_engine_every,
            herds=self._options.minutes >= LONG_MINUTES,
        )
        await clients.warm_up()
        resting = Resting(server, self._tally, state_slots=clients.state_slots)
        rests = [await resting.measure()]
        end = time.monotonic() + 60 * self._options.minutes
        while (now := time.monotonic()) < end and server.exit_code is None:
            await clients.work(min(end, now + CHECK_EVERY_S))
            if server.exit_code is None:
                rests.append(await resting.measure())
                self._say(rests[-1])
        if server.exit_code is not None:
            self._tally.fault(f"the server left with {server.exit_code}: {server.last_words()}")
            return {"recoveries": clients.recoveries}, rests
        await clients.fill_everything()
        rests.append(await resting.measure())
        numbers = {
            "recoveries": clients.recoveries,
            "idle_cores": self._idle(server),
            **self._judge_differences(server),
        }
        return numbers, rests

    def _say(self, rest: Rest) -> None:
        tally = self._tally
        print(
            f"{sum(tally.outcomes.values())} requests, {sum(tally.left_after.values())} left,"
            f" {tally.probes_right} probes right, {len(tally.differences)} not,"
            f" {tally.num_faults} faults; {rest.numbers()}",
            file=sys.stderr,
            flush=True,
        )

    def _idle(self, server: ServedProcess) -> list[float]:
        engine = server.engine_pid()
        assert engine is not None
        shares = [round(share, 4) for share in cpu_share([server.pid, engine], IDLE_S)]
        if max(shares) > MOST_IDLE_CORES:
            self._tally.fault(f"idle, server and engine use {shares} cores")
        return shares

    def _judge_differences(self, server: ServedProcess) -> dict[str, Any]:
        """Near ties are counted; what is none is a fault."""
        tally = self._tally
        greedy = [each for each in tally.differences if is_greedy(each.ask)]
        sampled = len(tally.differences) - len(greedy)
        if sampled > 1 + MOST_SAMPLED_SHARE * tally.probes_right:
            tally.fault(f"{sampled} sampled probes differ from themselves")
        near_ties = 0
        partings = self._partings(server, greedy)
        for difference, parting in zip(greedy, partings, strict=True):
            near = parting["margin"] < parting["tolerance"]
            near_ties += near
            if not near:
                tally.fault(f"wrong text, {parting}: {difference}")
        return {
            "near_ties": near_ties,
            "near_tie_partings": [
                {"probe": each.ask.probe, **parting}
                for each, parting in zip(greedy, partings, strict=True)
            ],
            "sampled_different": sampled,
        }

    def _partings(
        self, server: ServedProcess, differences: list[Difference]
    ) -> list[dict[str, float]]:
        if not differences:
            return []
        questions = []
        with httpx.Client(base_url=server.address, timeout=60) as http:
            for each in differences:
                assert isinstance(each.ask.body, Mapping)
                text = {key: each.ask.body[key] for key in TEXT_FIELDS if key in each.ask.body}
                tokens = http.post("/tokenize", json=text).json()["tokens"]
                questions.append({"prompt": tokens, "wanted": each.wanted, "found": each.found})
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("second_opinion.py"))],
            input=json.dumps(questions),
            capture_output=True,
            text=True,
            check=True,
            timeout=SECOND_OPINION_S,
        )
        partings: list[dict[str, float]] = json.loads(done.stdout)
        return partings

    def _judge_growth(self, rests: list[Rest]) -> None:
        """After the first minute nothing grows but what an allocator keeps."""
        for process in (0, 1):
            settled = [rest.usages[process] for rest in rests[1:]]
            if not settled or len({usage.pid for usage in settled}) > 1:
                continue  # another engine: its numbers are its own
            growth = settled[-1].anonymous_mib - settled[0].anonymous_mib
            if growth > MOST_GROWTH_MIB:
                self._tally.fault(f"{('server', 'engine')[process]} grew by {growth:.0f} MiB")


if __name__ == "__main__":
    sys.exit(main())
