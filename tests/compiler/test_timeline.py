"""The timeline: what it says must be what the plan and the estimate say, and the picture must be readable anywhere."""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_costs import plan_residency
from firmtoken.compiler.quantities import duration
from firmtoken.compiler.timeline import Timeline, timelines
from firmtoken.compiler.timeline_svg import FILLS, draw
from firmtoken.compiler.timeline_text import summary
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
CASES = Path(__file__).parent / "cases"
SVG = "{http://www.w3.org/2000/svg}"
SHIPPED = tuple(sorted(path.stem for path in PROFILES.glob("*.yaml")))
H200_12 = ("hardware.gpu.memory=12GiB", "serving.requests=2", "serving.context=32k")
SITUATIONS = (
    *((name,) for name in SHIPPED),
    ("h200-qwen", *H200_12),
    ("h200-qwen", *H200_12, "streams.layout=single"),
    (
        "h200-minimax",
        "hardware.gpu.memory=96GiB",
        "hardware.host.memory=160GiB",
        "hardware.host.pinnable=140GiB",
    ),
    ("4090-qwen", "hardware.gpu.memory=16GiB"),
    ("4090-qwen", "graphs=off"),
    ("tiny-cpu", "streams.layout=single"),
)
Plans = Callable[..., Plan]
every_situation = pytest.mark.parametrize("situation", SITUATIONS, ids=" ".join)


@pytest.fixture(scope="session")
def timelines_of(plan_of: Plans) -> Callable[..., tuple[Timeline, ...]]:
    @lru_cache(maxsize=64)
    def found(name: str, *overrides: str) -> tuple[Timeline, ...]:
        profile = load_profile(str(PROFILES / f"{name}.yaml"), overrides).profile
        return timelines(profile, plan_of(name, *overrides))

    return found


@pytest.fixture(scope="session")
def picture_of(timelines_of: Callable[..., tuple[Timeline, ...]]) -> Callable[..., str]:
    return lru_cache(maxsize=64)(lambda *situation: draw(situation[0], timelines_of(*situation)))


Timelines = Callable[..., tuple[Timeline, ...]]
Pictures = Callable[..., str]


@every_situation
def test_a_timeline_takes_as_long_as_the_estimate_says(
    timelines_of: Timelines, situation: tuple[str, ...]
) -> None:
    """The estimate lets nothing overlap in a decode step, and has the first layer's copies waited for in full.

    `tiny-cpu` is 5.3 % apart: its kernels are so short that a fetch beside them shows.
    """
    apart = 0.06 if situation == ("tiny-cpu",) else 0.05
    for timeline in timelines_of(*situation):
        assert timeline.total_s == pytest.approx(timeline.estimate_s, rel=apart), timeline.name


@every_situation
def test_launches_of_a_stream_never_overlap_and_no_event_is_waited_for_in_vain(
    timelines_of: Timelines, situation: tuple[str, ...]
) -> None:
    for timeline in timelines_of(*situation):
        for stream in timeline.streams:
            lane = [launch for launch in timeline.launches if launch.stream == stream]
            assert all(first.end <= second.start for first, second in pairwise(lane))
        for launch in timeline.launches:
            assert launch.start <= launch.end
            for arrow in launch.arrows:
                assert timeline.launches[arrow.source].end == arrow.at <= launch.start


@every_situation
def test_what_main_does_and_waits_for_is_the_whole_time(
    timelines_of: Timelines, situation: tuple[str, ...]
) -> None:
    for timeline in timelines_of(*situation):
        spent = timeline.busy_s("main") + timeline.waiting_s("link") + timeline.waiting_s("host")
        last = max(launch.end for launch in timeline.launches if launch.stream == "main")
        assert spent == pytest.approx(last)
        assert last == timeline.total_s, "a program ends on main"


@every_situation
def test_loads_add_up_to_what_the_estimate_counts(
    timelines_of: Timelines, plan_of: Plans, situation: tuple[str, ...]
) -> None:
    plan = plan_of(*situation)
    decode, prefill = timelines_of(*situation)
    moved = plan.estimates.bytes_per_token
    read = sum(launch.load.device_bytes for launch in decode.launches)
    assert read == pytest.approx(
        moved.device, rel=1e-3
    )  # the embedding's row is not among the plan's bytes
    assert sum(launch.load.link_bytes for launch in decode.launches) == pytest.approx(moved.link)
    copied = sum(launch.load.link_bytes for launch in prefill.launches)
    missing = plan_residency(plan).missing
    assert copied == pytest.approx(missing * plan.experts.slot_bytes)


def test_a_prefill_without_copies_computes_what_the_prompt_needs(timelines_of: Timelines) -> None:
    """2 FLOP for each of 2.44 G active parameters and token; attention over half the prompt (performance.md 2.3)."""
    _, prefill = timelines_of("4090-qwen")
    tokens = 8_192
    pairs = 4 * 10 * 16 * 256 * tokens / 2
    done = sum(launch.load.flop for launch in prefill.launches)
    assert done == pytest.approx(tokens * (2 * 2.437e9 + pairs), rel=2e-3)


def test_without_a_shared_expert_a_decode_step_waits_for_every_byte(
    timelines_of: Timelines,
) -> None:
    decode, _ = timelines_of("pro6000-minimax")
    assert decode.waiting_s("link") == pytest.approx(decode.busy_s("link"))
    hidden, _ = timelines_of("h200-qwen", *H200_12)
    assert 0.8 * hidden.busy_s("link") < hidden.waiting_s("link") < hidden.busy_s("link")


def test_a_cpu_has_no_host_beside_it(timelines_of: Timelines) -> None:
    assert all("host" not in timeline.streams for timeline in timelines_of("tiny-cpu"))
    assert all("host" in timeline.streams for timeline in timelines_of("4090-qwen"))


def test_magnified_layers_are_neighbours_of_different_kinds(timelines_of: Timelines) -> None:
    decode, _ = timelines_of("4090-qwen")
    first, last = decode.middle_layers()
    assert last == first + 1
    assert {decode.layer_kinds[first], decode.layer_kinds[last]} == {"linear", "full"}


@every_situation
def test_the_picture_is_small_well_formed_and_needs_nothing_else(
    picture_of: Pictures, situation: tuple[str, ...]
) -> None:
    text = picture_of(*situation)
    assert len(text.encode()) < 500_000
    root = ElementTree.fromstring(text)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {
        *("svg", "title", "style", "defs", "pattern", "marker", "path", "circle"),
        *("g", "rect", "line", "polygon", "text"),
    }
    links = {value for element in root.iter() for value in element.attrib.values() if "//" in value}
    assert links == set()
    assert "font-face" not in text
    assert "@import" not in text


@every_situation
def test_everything_drawn_lies_on_the_sheet_and_arrows_point_forward(
    picture_of: Pictures, situation: tuple[str, ...]
) -> None:
    root = ElementTree.fromstring(picture_of(*situation))
    width, height = (float(number) for number in root.attrib["viewBox"].split()[2:])
    body = [element for element in root if element.tag != f"{SVG}defs"]
    for rect in (found for element in body for found in element.iter(f"{SVG}rect")):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert x >= 0
        assert x + float(rect.attrib["width"]) <= width + 1
        assert 0 <= y <= height - float(rect.attrib["height"])
    arrows = [line for line in root.iter(f"{SVG}line") if "marker-end" in line.attrib]
    assert all(float(line.attrib["x2"]) >= float(line.attrib["x1"]) for line in arrows)


def test_hover_text_says_op_layer_kernel_bytes_flop_time_and_waits(picture_of: Pictures) -> None:
    root = ElementTree.fromstring(picture_of("pro6000-minimax"))
    texts = [title.text or "" for title in root.iter(f"{SVG}title")]
    experts = next(text for text in texts if text.startswith("moe_gate_up (layer 31)"))
    for word in ("kernel triton_nvfp4", "stream main", "device memory", "GFLOP", " us"):
        assert word in experts
    assert "waits for fetch of layer 31 on link" in experts
    assert any("MiB over the link" in text for text in texts)


def test_names_are_escaped(timelines_of: Timelines) -> None:
    name = "<script>\"&'</script>"
    root = ElementTree.fromstring(draw(name, timelines_of("tiny-cpu")))
    assert root.find(f"{SVG}title").text == f"Timeline of {name}"  # type: ignore[union-attr]  # found or fails
    assert root.find(f".//{SVG}script") is None


def test_solid_groups_differ_in_lightness() -> None:
    """What has no pattern must be told apart on a grey print."""
    solid = [fill for fill in FILLS.values() if fill.startswith("#")]
    grey = sorted(
        0.299 * int(fill[1:3], 16) + 0.587 * int(fill[3:5], 16) + 0.114 * int(fill[5:7], 16)
        for fill in solid
        if fill != FILLS["enqueueing"]  # on a lane of its own
    )
    assert min(second - first for first, second in pairwise(grey)) > 25


@pytest.mark.parametrize("name", ["4090-qwen", "pro6000-minimax"])
def test_the_summary_is_the_golden_one(
    name: str, timelines_of: Timelines, golden: Callable[[Path, str], None]
) -> None:
    golden(CASES / f"{name}.timeline.txt", summary(timelines_of(name)))


def test_durations_have_three_digits() -> None:
    values = {
        1.3e-7: "0.13 us",
        1.234e-5: "12.3 us",
        9.999e-4: "1.00 ms",
        0.6132: "613 ms",
        12.34: "12.3 s",
    }
    assert {value: duration(value) for value in values} == values
