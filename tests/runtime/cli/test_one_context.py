"""The context is one number: the plan, the first line, the routes and the refusals say the same, or nothing starts."""

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.runtime.cli.console import ft

CASES = {
    "larger pool": (("tiny-cpu-resident", "serving.context=32k", "serving.pool=48k"), 32_768),
    "pool": (("tiny-cpu", "serving.context=5000", "serving.pool=5000"), 5_000),
    "auto": (("tiny-cpu", "serving.context=auto", "hardware.cpu.memory=90MiB"), 12_288),
}


def wished(profile: str, *overrides: str) -> list[str]:
    return [profile, *(word for one in overrides for word in ("--set", one))]


def complete(client: httpx.Client, tokens: int) -> httpx.Response:
    body = {"prompt": [300 + at % 3000 for at in range(tokens)], "max_tokens": 1}
    return client.post("/v1/completions", json=body)


@pytest.mark.report(1, 2, 11, 12)
@pytest.mark.parametrize("case", CASES)
def test_every_place_says_the_same_context(case: str, start: Callable[..., Any]) -> None:
    wish, context = CASES[case]
    process = start({}, *wished(*wish), "--port", "0")
    with httpx.Client(base_url=process.ready(), timeout=30) as client:
        first = process.output[0]
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
    assert ft("plan", *wished(*wish)).stdout.splitlines()[0] == first.rstrip("\n")


@pytest.mark.report(13)
def test_a_context_that_does_not_fit_starts_nothing_and_names_the_largest_that_does() -> None:
    machine = ("tiny-cpu", "hardware.cpu.memory=90MiB")
    done = ft("run", *wished(*machine, "serving.context=32k"))
    assert (done.returncode, done.stdout) == (3, "")
    fault, hint = done.stderr.splitlines()
    for part in ("`serving.context`", "`32768` tokens", "needed", "available", "missing"):
        assert part in fault
    largest = re.findall(r"at most (\d+)", hint)[0]
    plan = ft("plan", *wished(*machine, f"serving.context={largest}"))
    assert plan.stdout.startswith(f"effective context {int(largest):,} ")


@pytest.mark.report(13)
def test_auto_never_lands_below_its_floor_in_silence() -> None:
    small = ("tiny-cpu", "serving.context=auto", "hardware.cpu.memory=76MiB")
    done = ft("plan", *wished(*small))
    context = int(re.findall(r"^effective context ([\d,]+) of", done.stdout)[0].replace(",", ""))
    assert context < 32_768
    assert re.search(r"warning.*context", done.stdout, re.IGNORECASE)
