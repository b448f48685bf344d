"""Every number of a plan is reproduced by `plan_checker`, and the checker objects to every other number."""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tests.compiler.plan_checker import bench_of, differences

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.schema.load import load_profile

PlanOf = Callable[..., Plan]
Data = dict[str, Any]  # Any: JSON has no narrower type
Change = Callable[[Data], object]
PROFILES = Path(__file__).resolve().parents[2] / "profiles"
SHIPPED = sorted(path.stem for path in PROFILES.glob("*.yaml"))
OFFLOADED, CAPTURED = "tiny-cpu", "h200-qwen"
WISHES = (
    ("tiny-cpu", "serving.context=auto", "serving.prefer=speed"),
    ("tiny-cpu", "serving.context=max", "serving.requests=1"),
    ("tiny-cpu", "serving.pool=20k", "serving.requests=3", "cache.page_size=32"),
    ("tiny-cpu", "experts.slots=100", "hardware.link=null"),
    ("tiny-cpu", "streams.layout=single", "serving.context=600"),
    ("tiny-cpu", "schedule.prefill_chunk=128", "schedule.prefill_span=256", "cache.type=none"),
    ("tiny-cpu", "schedule.on_demand_below=30", "schedule.step_deadline=30s"),
    ("tiny-cpu", "kernels={moe_gate_up: torch_nvfp4, moe_down: torch_nvfp4}"),
    ("tiny-cpu-resident", "hardware.host.memory=1025MiB", "hardware.host.pinnable=1MiB"),
    ("tiny-cpu", "hardware.host.memory=1150MiB", "hardware.host.pinnable=1GiB"),
    ("4090-qwen", "hardware.gpu.memory=16GiB", "serving.context=auto"),
    ("4090-qwen", "serving.context=max", "cache.kv_dtype=bf16", "graphs=off"),
    ("4090-qwen", "experts.slots=5000", "hardware.software.os=wsl", "serving.requests=16"),
    ("pro6000-minimax", "serving.context=auto", "serving.prefer=context", "cache.kv_dtype=bf16"),
    ("4090-minimax", "serving.context=auto", "hardware.gpu.memory=32GiB"),
    ("4090-minimax", "serving.context=max", "experts.slots=500", "streams.layout=single"),
    ("4090-minimax", "schedule.prefill_span=16k", "serving.context=20k"),
    ("4090-qwen", "hardware.gpu.memory=12GiB", "serving.context=auto"),
    ("3090-qwen", "hardware.gpu.memory=14GiB", "cache.kv_dtype=fp8"),
    ("h200-qwen", "model.source={synthetic: {seed: 1, routes: q36}}"),
    ("tiny-cpu", "model.source={synthetic: {seed: 1, routes: q36}}"),
    ("4090-qwen", "serving.context=32k", "kernels={attention.prefill: flashinfer_fa2}"),
    (
        "h200-qwen",
        "model.quantization.attention_out=fp8",
        "kernels={shared_expert.decode: triton_nvfp4}",
    ),
)


@lru_cache(maxsize=64)
def asked_of(name: str, *overrides: str) -> Data:
    """The resolved profile as data."""
    profile = load_profile(str(PROFILES / f"{name}.yaml"), overrides).profile
    found: Data = json.loads(profile.model_dump_json())
    return found


def data_of(plan: Plan) -> Data:
    found: Data = json.loads(plan_to_json(plan))
    return found


def numbers(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the numbers of a plan are."""
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from numbers(value, (*path, key))
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path


def kind_of(data: Data, path: tuple[str | int, ...]) -> str:
    """What sort of number it is: rows of a list are alike, lines of a ledger are not."""
    if path[0] == "memory" and "lines" in path:
        return f"{path[1]}.{data['memory'][path[1]]['lines'][path[3]]['name']}.{path[4]}"
    return ".".join("*" if isinstance(key, int) else key for key in path)


def firsts(data: Data) -> dict[str, tuple[str | int, ...]]:
    """The first number of each kind."""
    found: dict[str, tuple[str | int, ...]] = {}
    for path in numbers(data):
        found.setdefault(kind_of(data, path), path)
    return found


def unnoticed(data: Data, asked: Data, paths: dict[str, tuple[str | int, ...]]) -> list[str]:
    """Kinds of numbers that can be raised by one, or by a thousandth, and nobody objects."""
    found = []
    for kind, path in paths.items():
        row: Any = data
        for key in path[:-1]:
            row = row[key]
        number = row[path[-1]]
        row[path[-1]] = number + 1 if isinstance(number, int) else number * 1.001 or 1.0
        if not differences(data, asked):
            found.append(kind)
        row[path[-1]] = number
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_of_a_shipped_plan_is_reproduced(plan_of: PlanOf, name: str) -> None:
    assert differences(data_of(plan_of(name)), asked_of(name)) == []


@pytest.mark.parametrize("wish", WISHES, ids=[" ".join(wish) for wish in WISHES])
def test_every_number_of_a_plan_for_other_wishes_is_reproduced(
    plan_of: PlanOf, wish: tuple[str, ...]
) -> None:
    assert differences(data_of(plan_of(*wish)), asked_of(*wish)) == []


def test_no_kind_of_number_can_change_unnoticed(plan_of: PlanOf) -> None:
    data = data_of(plan_of(OFFLOADED))
    kinds = firsts(data)
    assert len(kinds) > 180
    assert unnoticed(data, asked_of(OFFLOADED), kinds) == []


def test_no_kind_of_number_that_only_a_gpu_has_can_change_unnoticed(plan_of: PlanOf) -> None:
    data, known = data_of(plan_of(CAPTURED)), firsts(data_of(plan_of(OFFLOADED)))
    kinds = {kind: path for kind, path in firsts(data).items() if kind not in known}
    assert {"device.graphs.count", "device.margin.bytes", "hardware.gpu.reserve"} <= set(kinds)
    assert unnoticed(data, asked_of(CAPTURED), kinds) == []


def line(data: Data, side: str, name: str) -> Data:
    found: Data = next(row for row in data["memory"][side]["lines"] if row["name"] == name)
    return found


def buffer(data: Data, name: str) -> Data:
    found: Data = next(row for row in data["buffers"] if row["name"] == name)
    return found


def waste_a_slot(data: Data) -> None:
    """One slot less, wherever it is counted."""
    slot, row = data["experts"]["slot_bytes"], line(data, "device", "experts.cache")
    row["count"] -= 1
    row["bytes"] -= slot
    data["memory"]["device"]["total"] -= slot
    data["memory"]["device"]["free"] += slot
    data["experts"]["slots"] -= 1
    data["experts"]["slots_per_layer"][-1] -= 1
    buffer(data, "cache")["places"][-1][1] -= slot
    data["experts"]["resident_fraction"] = data["experts"]["slots"] / data["experts"]["total"]


def drop_a_row(data: Data) -> None:
    del data["frontier"][0]


def mark_another_row(data: Data) -> None:
    for row in data["frontier"]:
        row["chosen"] = not row["chosen"] and row is data["frontier"][0]


def overlap_the_hidden_states(data: Data) -> None:
    buffer(data, "decode.h")["offset"] = buffer(data, "decode.hid")["offset"]


def overlap_a_result(data: Data) -> None:
    buffer(data, "decode.tokens")["offset"] = buffer(data, "prefill.tokens")["offset"]


def share_the_arena_across_a_yield(data: Data) -> None:
    row = buffer(data, "prefill.hid")
    row |= {"space": "activations", "index": [], "stride": [], "ring": []}
    programs = json.dumps(data["programs"]).replace("prefill.hid[c]", "prefill.hid")
    data["programs"] = json.loads(programs)


def hide_a_line(data: Data) -> None:
    row = line(data, "device", "tables")
    data["memory"]["device"]["lines"].remove(row)
    data["memory"]["device"]["total"] -= row["bytes"]
    data["memory"]["device"]["free"] += row["bytes"]


def read_before_it_is_written(data: Data) -> None:
    steps = data["programs"]["decode"]["blocks"]["linear.mixer"]
    steps[0], steps[1] = steps[1], steps[0]


FORGERIES: dict[Change, str] = {
    waste_a_slot: "experts.slots is",
    drop_a_row: "frontier has rows for",
    mark_another_row: "frontier marks",
    overlap_the_hidden_states: "writes ('decode.h', ()) over its own input ('decode.hid', ())",
    overlap_a_result: "overlap in inputs",
    share_the_arena_across_a_yield: "reads ('prefill.hid', ()), which is not there any more",
    hide_a_line: "device has lines",
    read_before_it_is_written: "reads ('decode.h', ()), which is not there any more",
}


@pytest.mark.parametrize("change", FORGERIES, ids=lambda change: change.__name__)
def test_a_plan_that_agrees_with_itself_and_not_with_the_definitions_is_found(
    plan_of: PlanOf, change: Change
) -> None:
    data = data_of(plan_of(OFFLOADED))
    change(data)
    assert any(FORGERIES[change] in found for found in differences(data, asked_of(OFFLOADED)))


def test_rows_of_the_other_placement_rest_on_that_placements_own_ledger(plan_of: PlanOf) -> None:
    wish = ("4090-qwen", "serving.context=64k")
    resident = bench_of(data_of(plan_of(*wish)), asked_of(*wish))
    offload = bench_of(
        data_of(plan_of(*wish, "experts.placement=offload")),
        asked_of(*wish, "experts.placement=offload"),
    )
    assert set(resident.fixed) == {"resident", "offload"}
    assert resident.fixed["offload"] == offload.fixed["offload"]
