"""Two minutes of everything at once: what clients do to `ft run`, and what it must hold and give back meanwhile."""

import json
import subprocess

import pytest


@pytest.mark.timeout(900)
@pytest.mark.report(30, 41, 42, 53)
def test_two_minutes_of_soak_find_no_fault(soak: "subprocess.Popen[str]") -> None:
    """It was started with the first test of this folder: it needs time, not our attention."""
    output, errors = soak.communicate()
    assert output, errors
    report = json.loads(output.splitlines()[-1])
    assert report["faults"] == []
    assert soak.returncode == 0
    # It tried what it should: a soak in which nobody leaves or is refused proves nothing.
    assert report["requests"] > 100 and report["disconnects"] > 20
    assert report["refused_429"] > 0 and report["cached_tokens"] > 0
    assert report["probes_right"] > 20
