"""Two minutes of everything at once: what clients do to `ft run`, and what it must hold and give back meanwhile."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MINUTES = 2.0
OVERRIDES = ("serving.context=4k", "serving.pool=4k", "serving.queue=24")
"""A pool that its clients fill, a queue that a crowd overruns."""


@pytest.mark.timeout(900)
@pytest.mark.report(30, 41, 42, 53)
def test_two_minutes_of_soak_find_no_fault(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests" / "soak" / "soak.py")]
    command += ["--minutes", str(MINUTES), "--debug", "--out", str(tmp_path)]
    for override in OVERRIDES:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["faults"] == []
    assert done.returncode == 0
    # It tried what it should: a soak in which nobody leaves or is refused proves nothing.
    assert report["requests"] > 100 and report["disconnects"] > 20
    assert report["refused_429"] > 0 and report["cached_tokens"] > 0
    assert report["probes_right"] > 20
