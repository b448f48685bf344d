"""Random traffic on small engines of several kinds, from empty to empty.

By hand: `PYTHONPATH=.src python -m tests.runtime.engine.random_traffic --requests 1000000 --seed 1`
"""

import argparse
import hashlib
import random
import time
from dataclasses import replace

from tests.runtime.engine.simulation import Simulation
from tests.runtime.engine.tiny_limits import PLAIN, TINY

LARGE = replace(
    TINY, pages=1 + 64, state_slots=17, snapshot_slots=24, max_num_seqs=8, graph_batch_sizes=(2, 8)
)
SETTINGS = {
    "tiny hybrid": TINY,
    "tiny": PLAIN,
    "tiny without cache": replace(PLAIN, caching=False),
    "hybrid without snapshots": replace(TINY, snapshot_slots=0),
    "little reserved": replace(TINY, output_reserve=1, snapshot_slots=1),
    "pages of one token": replace(
        PLAIN, page_size=1, pages=1 + 40, prefill_span=5, effective_context=40
    ),
    "large hybrid": LARGE,
    "large": replace(PLAIN, pages=1 + 96, max_num_seqs=12, graph_batch_sizes=(4, 12)),
}


def simulate(
    name: str,
    seed: int,
    num_requests: int,
    check_every: int,
    fail: float = 0.0,
    *,
    ahead: bool = False,
) -> Simulation:
    """One of the settings, from an empty engine to an empty engine."""
    simulation = Simulation(
        SETTINGS[name],
        random.Random(f"{name} {seed}"),
        check_every,
        abort=0.02,
        fail=fail,
        arrive_at_yields=0.1,
        ahead=ahead,
    )
    simulation.run(num_requests)
    assert simulation.seen["refused"] == 0
    assert fail or simulation.seen["error"] == 0
    return simulation


def main() -> None:
    """Every setting by turns, as many requests in all as asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check-every", type=int, default=64)
    arguments = parser.parse_args()
    outcome = hashlib.sha256()
    for name in SETTINGS:
        start = time.perf_counter()
        done = simulate(
            name, arguments.seed, arguments.requests // len(SETTINGS), arguments.check_every
        )
        outcome.update(done.outcome.digest())
        seconds = time.perf_counter() - start
        print(
            f"{name}: {done.num_added} requests, {done.steps} steps, {seconds:.1f} s, passed at most {done.most_passed}"
            f" times, waited at most {done.longest_wait} steps, {dict(sorted(done.seen.items()))}",
            flush=True,
        )
    print(f"seed {arguments.seed}, outcome {outcome.hexdigest()[:16]}")


if __name__ == "__main__":
    main()
