"""Hazards are data: a file that is refused where it is wrong, and which machine has which of them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from firmtoken.compiler.hazards import (
    HAZARDS,
    BadHazards,
    condition,
    find_hazard,
    holds,
    load_hazards,
    read_hazards,
)
from firmtoken.compiler.passes.choose_cache import choose_cache
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.situation import FIELDS, Situation, describe_situation
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile
from firmtoken.schema.source import read_yaml
from firmtoken.schema.tree import plain

ROOT = Path(__file__).resolve().parents[2]
ROW = {
    "id": "H-99",
    "act": "forbid",
    "when": [{"capability": "8.9"}],
    "effect": "it breaks",
    "alternative": "another kernel",
    "source": "somebody",
}


def situation(*overrides: str, profile: str = "4090-qwen") -> Situation:
    loaded = load_profile(str(ROOT / "profiles" / f"{profile}.yaml"), overrides).profile
    _, facts = describe_model(loaded)
    return describe_situation(loaded, choose_cache(loaded, facts))


def test_the_file_is_yaml_as_its_name_says() -> None:
    rows = plain(read_yaml(HAZARDS.read_bytes(), str(HAZARDS)))
    assert isinstance(rows, list)
    assert [row["id"] for row in rows] == [hazard.id for hazard in load_hazards()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sevrity": "high"}, "unknown field `sevrity`"),
        ({"id": "Z-01"}, "matching regex"),
        ({"act": "ignore"}, "Invalid enum value 'ignore'"),
        ({"unknown": "maybe"}, "Invalid enum value 'maybe'"),
        ({"concerns": "us"}, "Invalid enum value 'us'"),
        ({"when": []}, "length >= 1"),
        ({"when": [{"tourch": "<2"}]}, "`H-99`: there is no subject `tourch`"),
        ({"when": [{"torch": "old"}]}, "`H-99`: `torch: old` is no comparison"),
        ({"when": [{"torch": 2.12}]}, "Expected `str`, got `float`"),
        ({"effect": ""}, "length >= 1"),
        ({"caps": {"prefill_chunk": 64}}, "`H-99`: `act: forbid` goes with no other effect"),
        ({"act": "cap", "concerns": "plan"}, "`H-99`: `act: cap` goes with caps"),
        ({"act": "cap", "caps": {"slots": 64}}, "Invalid enum value 'slots'"),
        (
            {"act": "cap", "caps": {"prefill_chunk": 64}},
            "`H-99`: a size is capped for the plan, not for a kernel",
        ),
        ({"act": "environment"}, "`H-99`: `act: environment` goes with environment"),
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, object], message: str) -> None:
    read_hazards(json.dumps([ROW]).encode())
    with pytest.raises(BadHazards) as caught:
        read_hazards(json.dumps([ROW | change]).encode())
    assert message in str(caught.value)


@pytest.mark.parametrize("field", sorted(ROW))
def test_a_row_without_a_field_is_refused(field: str) -> None:
    short = {name: value for name, value in ROW.items() if name != field}
    with pytest.raises(BadHazards, match=f"missing required field `{field}`"):
        read_hazards(json.dumps([short]).encode())


def test_an_id_is_there_once() -> None:
    with pytest.raises(BadHazards, match="`H-99` is there twice"):
        read_hazards(json.dumps([ROW, ROW]).encode())


def test_a_hazard_of_kernels_is_named_by_a_card_and_one_of_plans_by_none() -> None:
    named = {hazard for card in CARDS for hazard in card.hazards}
    assert named == {hazard.id for hazard in load_hazards() if hazard.concerns == "kernel"}


def test_every_subject_of_a_condition_is_known_of_every_plan() -> None:
    known = set(situation().found)
    assert known == set(FIELDS)
    asked = {term.subject for hazard in load_hazards() for terms in hazard.when for term in terms}
    assert asked <= known


def test_all_kinds_of_effect_are_in_use() -> None:
    assert Counter(hazard.act for hazard in load_hazards()).keys() == {
        "forbid",
        "cap",
        "warn",
        "environment",
    }


@pytest.mark.parametrize(
    ("torch", "capability", "expected"),
    [
        ("2.11.0", "8.9", True),
        ("2.11", "8.9", True),
        ("2.11.0+cu130", "8.9", True),
        ("2.12.0", "8.9", False),
        ("2.12", "8.9", False),
        ("2.13.0", "8.9", False),
        ("2.11.0", "9.0", False),
        ("null", "8.9", True),
        ("nightly", "8.9", True),
    ],
)
def test_row_wise_fp8_is_a_matter_of_versions(torch: str, capability: str, expected: bool) -> None:
    found = situation(
        f"hardware.software.torch={torch}", f"hardware.gpu.compute_capability={capability}"
    )
    assert holds(find_hazard("H-01"), found) is expected


def test_a_version_that_is_not_given_counts_as_the_row_says() -> None:
    packages = ("torch", "triton", "flashinfer", "cuda", "nvcc", "driver")
    nothing = (f"hardware.software.{package}=null" for package in packages)
    found = situation(*nothing, "hardware.gpu.compute_capability=12.0")
    silent = {hazard.id for hazard in load_hazards() if hazard.unknown == "holds"}
    assert {hazard.id for hazard in load_hazards() if holds(hazard, found)} & silent == {
        "H-03",
        "H-10",
        "H-11",
        "H-38",
    }
    assert condition(find_hazard("H-03"), found) == (
        "compute capability from 12.0, torch before 2.11 unless `hardware.software.torch` says otherwise"
    )
    for absent in ("H-42", "H-49", "H-77", "H-83"):
        assert not holds(find_hazard(absent), found)


def test_an_alternative_is_enough() -> None:
    b12x = find_hazard("H-14")
    assert condition(b12x, situation()) == "2 or more requests"
    assert condition(b12x, situation("serving.requests=1")) == "captured graphs"
    assert not holds(b12x, situation("serving.requests=1", "graphs=off"))


@pytest.mark.parametrize(("slots", "expected"), [(8191, False), (8192, True), ("auto", True)])
def test_slots_in_32_bits_end_at_8191_for_this_geometry(slots: object, expected: bool) -> None:
    assert holds(find_hazard("H-17"), situation(f"experts.slots={slots}")) is expected


def test_an_operating_system_can_be_the_condition() -> None:
    assert not holds(find_hazard("H-02"), situation())
    assert holds(find_hazard("H-02"), situation("hardware.software.os=windows"))


def test_a_cpu_has_none() -> None:
    found = situation(profile="tiny-cpu")
    assert not any(holds(hazard, found) for hazard in load_hazards())
