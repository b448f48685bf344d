"""A cold checkpoint comes as fast as the disk gives it, and is in memory once."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firmtoken.runtime.weights.reading import BUFFER_BYTES, READERS

PROGRAM = Path(__file__).parent / "loading_rate.py"
LEAST_SHARE = 0.85
"""Of what the same readers get who do nothing with what they read, in the same run."""
MOST_MEMORY = 1.1
"""Of the weights, everything counted that is not a file's: the interpreter, torch, and the buffers."""
LOOSELY = 5
"""CI's disks are shared: there only what is wrong by a factor shows."""


def measure(folder: Path, *, layers: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, str(PROGRAM), str(folder), str(layers), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_half_a_gigabyte_is_read_at_a_rate_of_the_disks_order_and_held_once(tmp_path: Path) -> None:
    found = measure(tmp_path, layers=1, rounds=2)
    assert found["weights"] > 450e6
    assert found["share_of_the_disks_rate"] > LEAST_SHARE / LOOSELY
    grown = found["most_bytes"] - found["bytes_before"]
    assert grown < MOST_MEMORY * found["weights"] + READERS * BUFFER_BYTES
    assert found["cached"] < 0.05 * found["bytes"]  # the header
    assert found["most_files"] < 8 + 4 * READERS


@pytest.mark.slow
def test_four_gigabytes_are_read_at_the_disks_rate_and_held_once(tmp_path: Path) -> None:
    found = measure(tmp_path, layers=9, rounds=5)
    assert found["weights"] > 4e9
    assert found["share_of_the_disks_rate"] > LEAST_SHARE
    assert found["most_bytes"] < MOST_MEMORY * found["weights"]
    assert found["cached"] < 0.05 * found["bytes"]
