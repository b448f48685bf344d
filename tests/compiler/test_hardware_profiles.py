"""The shipped hardware: numbers as published, each with where it comes from, and plans without a warning."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.schema.hardware import Gpu
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
HARDWARE = sorted((PROFILES / "hardware").glob("*.yaml"))
GIB, GB, TERA = 2**30, 1e9, 1e12

# capability, memory GiB, memory GB/s, processors, L2 MiB, KiB a block, bf16, fp8, fp4 in TFLOPS (hardware.md 1.4)
PUBLISHED = {
    "3090-qwen": ("8.6", 23.5, 936, 82, 6, 99, 71, None, None),
    "4090-qwen": ("8.9", 23.5, 1008, 128, 72, 99, 165, 330, None),
    "5090-qwen": ("12.0", 31.36, 1792, 170, 96, 99, 209.5, 419, 1676),
    "pro6000-qwen": ("12.0", 95, 1792, 188, 128, 99, 504, 1008, 2015),
    "h200-qwen": ("9.0", 139.8, 4800, 132, 60, 227, 989, 1979, None),
}
ON_A_DESKTOP = ("3090-qwen", "5090-qwen")


def gpu_of(name: str) -> Gpu:
    gpu = load_profile(str(PROFILES / f"{name}.yaml")).profile.hardware.gpu
    assert gpu is not None
    return gpu


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_gpu_has_the_published_numbers(name: str) -> None:
    gpu = gpu_of(name)
    rates = [gpu.flops[kind] for kind in ("bf16", "fp8", "fp4")]
    assert (
        gpu.compute_capability,
        pytest.approx(gpu.memory / GIB, abs=0.005),
        gpu.bandwidth / GB,
        gpu.sms,
        gpu.l2 / 2**20,
        gpu.shared_memory_per_block / 2**10,
        *(None if rate is None else rate / TERA for rate in rates),
    ) == PUBLISHED[name]


@pytest.mark.parametrize("name", ON_A_DESKTOP)
def test_a_card_that_likely_drives_a_desktop_leaves_room_for_it(name: str) -> None:
    assert gpu_of(name).reserve == 1.25 * GIB


@pytest.mark.parametrize("path", HARDWARE, ids=lambda path: path.stem)
def test_every_number_says_where_it_comes_from(path: Path) -> None:
    assert unsourced(path.read_text()) == []


def unsourced(text: str) -> list[str]:
    """Fields with a number, neither commented themselves nor under a heading that is."""
    found, headings = [], {0: ""}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        written, _, comment = line.partition("#")
        field, _, value = written.strip().partition(":")
        if value.strip():
            if re.search("[0-9]", value) and not comment and not headings.get(indent - 2):
                found.append(field)
        else:
            headings[indent] = comment or headings.get(indent - 2, "")
    return [field for field in found if field not in ("schema", "name")]


def test_a_number_without_a_source_is_found() -> None:
    bare = "name: X 1\ngpu:\n  sms: 3  # D\n  l2: 6MiB\nhost:  # A: all\n  cores: 4\nlink:\n  h2d: 5GB/s\n"
    assert unsourced(bare) == ["l2", "h2d"]


@pytest.mark.parametrize("name", ["3090-qwen", "5090-qwen", "pro6000-qwen"])
def test_a_shipped_plan_has_no_warning_and_all_experts_resident(
    name: str, plan_of: Callable[..., Plan]
) -> None:
    plan = plan_of(name)
    assert plan.warnings == ()
    assert plan.context.limited_by in ("asked", "model")
    assert plan.experts.resident_fraction == 1
