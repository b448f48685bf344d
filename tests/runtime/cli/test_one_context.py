"""The context is one number: the plan, the first line, the routes and the refusals say the same, or nothing starts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

RUN_FAKE = Path(__file__).with_name("run_fake.py")
CASES = {
    "larger pool": (("tiny-cpu-resident", "serving.context=32k", "serving.pool=48k"), 32_768),
    "pool": (("tiny-cpu", "serving.context=5000", "serving.pool=5000"), 5_000),
    "auto": (("tiny-cpu", "serving.context=auto", "hardware.cpu.memory=90MiB"), 12_288),
}


def command(verb: str, profile: str, *overrides: str) -> list[str]:
    return [verb, profile, *(word for one in overrides for word in ("--set", one))]


def ft(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "firmtoken.runtime.cli.run", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@contextmanager
def serving(folder: Path, arguments: list[str]) -> Iterator[tuple[str, httpx.Client]]:
    """The first line, and a client of the server behind which a scripted engine runs."""
    process = subprocess.Popen(
        [sys.executable, str(RUN_FAKE), json.dumps({}), *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "XDG_STATE_HOME": str(folder)},
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        ready = next(line for line in process.stdout if line.startswith("ready"))
        with httpx.Client(base_url=ready.split()[1], timeout=30) as client:
            yield first, client
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def complete(client: httpx.Client, tokens: int) -> httpx.Response:
    body = {"prompt": [300 + at % 3000 for at in range(tokens)], "max_tokens": 1}
    return client.post("/v1/completions", json=body)


@pytest.mark.report(1, 2, 11, 12)
@pytest.mark.parametrize("case", CASES)
def test_every_place_says_the_same_context(case: str, tmp_path: Path) -> None:
    wish, context = CASES[case]
    with serving(tmp_path, command("run", *wish)) as (first, client):
        listed: Any = client.get("/v1/models").json()
        [model] = listed["data"]
        refusal = complete(client, 33 * 1024)
        said = {
            "line": int(re.findall(r"^effective context ([\d,]+) of", first)[0].replace(",", "")),
            "models": model["max_model_len"],
            "models again": model["context_length"],
            "health": client.get("/health").json()["effective_context"],
            "plan": client.get("/v1/plan").json()["context"]["effective"],
            "refusal": int(re.findall(r"length is (\d+) tokens", refusal.text)[0]),
        }
        taken, not_taken = complete(client, context - 1), complete(client, context)
    assert said == dict.fromkeys(said, context)
    assert (refusal.status_code, taken.status_code, not_taken.status_code) == (400, 200, 400)
    assert refusal.json()["error"]["code"] == "context_length_exceeded"
    assert "33792 tokens" in refusal.json()["error"]["message"]
    assert ft(*command("plan", *wish)).stdout.splitlines()[0] == first.rstrip("\n")


@pytest.mark.report(13)
def test_a_context_that_does_not_fit_starts_nothing_and_names_the_largest_that_does() -> None:
    machine = ("tiny-cpu", "hardware.cpu.memory=90MiB")
    done = ft(*command("run", *machine, "serving.context=32k"))
    assert (done.returncode, done.stdout) == (3, "")
    fault, hint = done.stderr.splitlines()
    for part in ("`serving.context`", "`32768` tokens", "needed", "available", "missing"):
        assert part in fault
    largest = re.findall(r"at most (\d+)", hint)[0]
    plan = ft(*command("plan", *machine, f"serving.context={largest}"))
    assert plan.stdout.startswith(f"effective context {int(largest):,} ")


@pytest.mark.report(13)
def test_auto_never_lands_below_its_floor_in_silence() -> None:
    small = ("tiny-cpu", "serving.context=auto", "hardware.cpu.memory=76MiB")
    done = ft(*command("plan", *small))
    context = int(re.findall(r"^effective context ([\d,]+) of", done.stdout)[0].replace(",", ""))
    assert context < 32_768
    assert re.search(r"warning.*context", done.stdout, re.IGNORECASE)
