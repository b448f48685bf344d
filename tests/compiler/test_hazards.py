"""Hazards are data: which machine has them."""

from pathlib import Path

import pytest

from firmtoken.compiler.hazards import condition, find_hazard, holds, load_hazards, version
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.hardware import Hardware
from firmtoken.schema.load import load_profile
from firmtoken.schema.source import read_yaml
from firmtoken.schema.tree import plain

ROOT = Path(__file__).resolve().parents[2]


def hardware(*overrides: str) -> Hardware:
    return load_profile(str(ROOT / "profiles" / "4090-qwen.yaml"), overrides).profile.hardware


def test_the_file_is_yaml_as_its_name_says() -> None:
    path = ROOT / "compiler" / "hazards.yaml"
    rows = plain(read_yaml(path.read_bytes(), str(path)))
    assert isinstance(rows, list)
    assert [row["id"] for row in rows] == [hazard.id for hazard in load_hazards()]


def test_every_hazard_has_a_source_and_a_remedy() -> None:
    ids = [hazard.id for hazard in load_hazards()]
    assert len(ids) == len(set(ids))
    assert all(hazard.source and hazard.remedy and hazard.effect for hazard in load_hazards())


def test_every_hazard_that_a_card_names_exists() -> None:
    for card in CARDS:
        for hazard in card.hazards:
            find_hazard(hazard)


@pytest.mark.parametrize(
    ("torch", "capability", "expected"),
    [
        ("2.11.0", "8.9", True),
        ("2.11.0+cu130", "8.9", True),
        ("2.12.0", "8.9", False),
        ("2.13.0", "8.9", False),
        ("2.11.0", "9.0", False),
        ("null", "8.9", True),
    ],
)
def test_row_wise_fp8_is_a_matter_of_versions(torch: str, capability: str, expected: bool) -> None:
    found = hardware(
        f"hardware.software.torch={torch}", f'hardware.gpu.compute_capability="{capability}"'
    )
    assert holds(find_hazard("H-01"), found) is expected


def test_an_operating_system_can_be_the_condition() -> None:
    assert not holds(find_hazard("H-02"), hardware())
    assert holds(find_hazard("H-02"), hardware("hardware.software.os=windows"))


def test_a_cpu_has_none() -> None:
    profile = load_profile(str(ROOT / "profiles" / "tiny-cpu.yaml")).profile
    assert not any(holds(hazard, profile.hardware) for hazard in load_hazards())


def test_versions_compare_by_their_numbers() -> None:
    assert version("2.12.1+cu130") == (2, 12, 1)
    assert version("2.9") < version("2.12")
    assert version("0.6.18.post1") == (0, 6, 18)
    assert version("3.8.0rc1") == (3, 8, 0)
    assert version("nightly") == ()


def test_a_condition_reads_as_words() -> None:
    assert condition(find_hazard("H-01")) == "compute capability 8.9, torch before 2.12"
    assert condition(find_hazard("H-02")) == "windows"
    assert condition(find_hazard("H-38")) == (
        "compute capability from 12.0, triton from 3.8, triton before 3.8.1"
    )
