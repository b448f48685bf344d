"""What holds of any small geometry on any memory: a plan that two checkers accept, or a refusal whose hint is true."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from tests.compiler.plan_checker import differences
from tests.compiler.plan_checker_model import ELEMENT, Model, read_model

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_from_json, plan_to_json
from firmtoken.compiler.verify import verify
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile
from firmtoken.schema.profile import Profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
MIB, GIB = 2**20, 2**30
MARGIN = 128 * MIB
HEAD_DIMS = {"cpu": [4, 16, 64], "cuda": [64, 128]}
"""On a GPU others have no attention kernel."""
PROCESS = {"cpu": GIB, "cuda": 3 * GIB}
AMOUNTS = {
    *(f"hardware.gpu.{name}" for name in ("memory", "reserve", "context_overhead")),
    *(f"hardware.host.{name}" for name in ("memory", "pinnable")),
    "hardware.cpu.memory",
}
Wish = dict[str, Any]  # Any: values of a profile, by dotted field
BOUNDED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)


def profile_of(wish: Wish) -> Profile:
    """A shipped profile for the device kind with the wish's values."""
    base = "4090-qwen" if "hardware.gpu.memory" in wish else "tiny-cpu"
    overrides = [
        # An amount needs its unit (D1).
        f"{field}={value}B"
        if field in AMOUNTS and isinstance(value, int)
        else f"{field}={json.dumps(value)}"
        for field, value in wish.items()
    ]
    return load_profile(str(PROFILES / f"{base}.yaml"), overrides).profile


def planned(wish: Wish) -> Plan | PlanError:
    """The plan or why there is none; nothing else may be raised."""
    try:
        return compile_profile(profile_of(wish), CARDS)
    except PlanError as error:
        return error


@st.composite
def geometries(draw: st.DrawFn, *, device: str) -> Wish:
    """A family and its sizes: with linear layers from none to all but one."""
    family = draw(st.sampled_from(["qwen3_5_moe", "qwen3_moe", "minimax_m2"]))
    hybrid = family == "qwen3_5_moe"
    layers = draw(st.integers(2 if hybrid else 1, 12))
    interval = draw(st.integers(2, layers)) if hybrid else 1
    kv_heads, head_dim = draw(st.integers(1, 3)), draw(st.sampled_from(HEAD_DIMS[device]))
    experts = draw(st.integers(4, 64))
    linear = None
    if interval > 1:
        keys = draw(st.integers(1, 3))
        linear = {
            "num_key_heads": keys,
            "num_value_heads": keys * draw(st.integers(1, 3)),
            "key_head_dim": draw(st.sampled_from([8, 16, 32])),
            "value_head_dim": draw(st.sampled_from([8, 32])),
            "conv_kernel": draw(st.integers(2, 5)),
        }
    shared = 16 * draw(st.integers(1, 8)) if family == "qwen3_5_moe" else 0
    return {
        "model.family": family,
        "model.geometry.num_layers": layers,
        "model.geometry.full_attention_interval": interval,
        "model.geometry.linear": linear,
        "model.geometry.hidden_size": 16 * draw(st.integers(1, 24)),
        "model.geometry.num_q_heads": kv_heads * draw(st.integers(1, 4)),
        "model.geometry.num_kv_heads": kv_heads,
        "model.geometry.head_dim": head_dim,
        "model.geometry.rotary_dim": draw(st.sampled_from([2, head_dim])),
        "model.geometry.num_experts": experts,
        "model.geometry.num_experts_per_token": draw(st.integers(1, min(8, experts))),
        "model.geometry.moe_intermediate_size": 16 * draw(st.integers(1, 16)),
        "model.geometry.shared_intermediate_size": shared,
        "model.geometry.vocab_size": draw(st.sampled_from([2, 500, 4_001])),
        "model.geometry.max_position_embeddings": draw(st.sampled_from([2, 64, 4_096, 65_536])),
    }


@st.composite
def wishes(draw: st.DrawFn, *, device: str | None = None) -> Wish:
    """A geometry, a machine from hopeless to ample, and what is asked of both."""
    device = device or draw(st.sampled_from(["cpu", "cuda"]))
    wish: Wish = draw(geometries(device=device))
    positions = wish["model.geometry.max_position_embeddings"]
    if device == "cuda":
        wish["hardware.gpu.memory"] = GIB
        wish["hardware.gpu.context_overhead"] = draw(st.sampled_from([0, 100 * MIB]))
        wish["hardware.gpu.reserve"] = draw(st.sampled_from([0, 10 * MIB]))
        wish["model.quantization.experts"] = draw(st.sampled_from(["nvfp4", "bf16"]))
        wish["cache.kv_dtype"] = draw(st.sampled_from(["auto", "bf16", "fp8"]))
        wish["graphs"] = draw(st.sampled_from(["auto", "off"]))
    wish["serving.requests"] = draw(st.integers(1, 8))
    context = draw(st.one_of(st.integers(2, 2 * positions), st.sampled_from(["auto", "max"])))
    wish["serving.context"] = context
    wish["serving.prefer"] = draw(st.sampled_from(["speed", "balanced", "context"]))
    if isinstance(context, int) and draw(st.integers(0, 4)) == 0:
        wish["serving.pool"] = context + draw(st.integers(0, 3 * context))
    wish["cache.page_size"] = draw(st.sampled_from(["auto", "auto", 16, 64]))
    wish["cache.type"] = draw(st.sampled_from(["auto", "auto", "none"]))
    wish["experts.placement"] = draw(
        st.sampled_from(["auto", "auto", "auto", "resident", "offload"])
    )
    model = model_of(wish, device)
    if wish["experts.placement"] != "resident" and draw(st.integers(0, 3)) == 0:
        wish["experts.slots"] = draw(st.integers(model.layers - 1, model.total))
    field = "hardware.gpu.memory" if device == "cuda" else "hardware.cpu.memory"
    wish[field] = memory(wish, model, device, draw(st.floats(0.1, 1.6)))
    bank = model.total * expert_bytes(wish, model, device)
    wish["hardware.host.memory"] = PROCESS[device] + int(bank * draw(st.floats(0, 4)) + GIB // 8)
    wish["hardware.host.pinnable"] = int(wish["hardware.host.memory"] * draw(st.floats(0.1, 1)))
    return wish


def model_of(wish: Wish, device: str) -> Model:
    geometry: dict[str, Any] = {}
    for field, value in wish.items():
        if field.startswith("model.geometry."):
            geometry[field.removeprefix("model.geometry.")] = value
    formats = ("attention", "linear_attention", "embedding", "router", "lm_head", "shared_expert")
    quantization = dict.fromkeys(formats, "bf16")
    data = {"geometry": geometry, "family": wish["model.family"], "quantization": quantization}
    return read_model(data, device)


def expert_bytes(wish: Wish, model: Model, device: str) -> int:
    width, hidden = model.expert_elements
    elements = 3 * width * hidden
    format_name = "fp32" if device == "cpu" else wish["model.quantization.experts"]
    return {"fp32": 4 * elements, "bf16": 2 * elements, "nvfp4": elements * 9 // 16}[format_name]


def memory(wish: Wish, model: Model, device: str, share: float) -> int:
    """A share of what the weights, all experts and a context of a quarter of the positions take."""
    positions, element = wish["model.geometry.max_position_embeddings"], ELEMENT[model.activation]
    chunk = min(512 if device == "cpu" else 8192, positions)
    rows = model.routed * sum(model.expert_elements) + 4 * model.hidden
    tokens = positions // 4
    everything = model.weight_bytes + model.total * expert_bytes(wish, model, device)
    everything += tokens * model.kv_elements * 2 + 16 * model.state_bytes
    everything += chunk * rows * element
    fixed = MIB
    if device == "cuda":
        fixed = MARGIN + wish["hardware.gpu.context_overhead"] + wish["hardware.gpu.reserve"]
    return fixed + int(share * everything)


def asked_of(wish: Wish) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(profile_of(wish).model_dump_json())
    return found


def accept(wish: Wish, plan: Plan) -> None:
    """By `verify`, from its JSON, and by the checker that knows nothing of the compiler."""
    encoded = plan_to_json(plan)
    verify(plan_from_json(encoded))
    assert differences(json.loads(encoded), asked_of(wish)) == []
    assert encoded == plan_to_json(compile_profile(profile_of(wish), CARDS))


def proposals(hint: str) -> Iterator[tuple[Wish, bool]]:
    """Changes, each with all that has to change as well, and whether they fit: a limit does, one more does not."""
    hint = hint.partition("; needed are")[0]
    sizes = dict(re.findall(r"`([\w.]+)` of at least `([\d.]+\w+)`", hint))
    besides = sizes if " as well" in hint else {}
    beside = r"(?:with `([\w.]+): (\w+)` )?set `([\w.]+)` to at most (\d+)"
    for other, value, field, number in re.findall(beside, hint):
        also = {other: int(value) if value.isdigit() else value} if other else {}
        yield {**besides, **also, field: int(number)}, True
        yield {**besides, **also, field: int(number) + 1}, False
    for field, word in re.findall(r"set `([\w.]+)` to (?:at most \d+, or to )?`([a-z]\w+)`", hint):
        yield {**besides, field: word}, True
    if sizes and not besides:
        yield sizes, True


def device_field(wish: Wish) -> str:
    return "hardware.gpu.memory" if "hardware.gpu.memory" in wish else "hardware.cpu.memory"


def both(one: Wish, other: Wish) -> tuple[Plan, Plan]:
    """Both plans; where the first wish has one, so must the second."""
    first = planned(one)
    assume(isinstance(first, Plan))
    assert isinstance(first, Plan)
    second = planned(other)
    assert isinstance(second, Plan), (str(second), other)
    return first, second


@settings(BOUNDED, max_examples=24)
@given(wish=wishes())
def test_a_wish_ends_in_a_plan_that_holds_or_in_a_refusal_whose_hint_is_true(wish: Wish) -> None:
    found = planned(wish)
    if isinstance(found, Plan):
        accept(wish, found)
        return
    assert found.exit_code in (2, 3)
    for refusal in found.refusals:
        assert refusal.hint, refusal
        for change, fits in proposals(refusal.hint):
            then = planned({**wish, **change})
            assert isinstance(then, Plan) == fits, (change, str(then), refusal)


@settings(BOUNDED, max_examples=6)
@given(wish=wishes(), share=st.floats(0, 1), more=st.integers(0, 8 * MIB))
def test_at_equal_slots_more_device_memory_never_gives_less_context(
    wish: Wish, share: float, more: int
) -> None:
    model = model_of(wish, "cuda")
    slots = max(model.layers, int(share * model.total))
    wish |= {"serving.context": "max", "experts.slots": slots, "experts.placement": "auto"}
    wish.pop("serving.pool", None)
    field = device_field(wish)
    small, large = both(wish, {**wish, field: wish[field] + more})
    assert small.experts.slots == large.experts.slots == slots
    assert small.context.effective <= large.context.effective


@settings(BOUNDED, max_examples=14)
@given(
    wish=wishes(),
    context=st.integers(2, 5_000),
    more=st.one_of(st.integers(0, MIB), st.integers(0, 8 * MIB)),
    placement=st.sampled_from(["offload", "auto"]),
)
def test_at_equal_context_more_device_memory_never_gives_fewer_slots(
    wish: Wish, context: int, more: int, placement: str
) -> None:
    wish |= {"serving.context": context, "experts.slots": "auto", "experts.placement": placement}
    wish.pop("serving.pool", None)
    field = device_field(wish)
    small, large = both(wish, {**wish, field: wish[field] + more})
    assert small.context.effective == large.context.effective
    assert small.experts.slots <= large.experts.slots
    assert small.kv_cache.tokens <= large.kv_cache.tokens or small.experts.placement == "offload"


@settings(BOUNDED, max_examples=6)
@given(wish=wishes(), more=st.integers(0, 200 * MIB))
def test_more_host_memory_never_gives_less(wish: Wish, more: int) -> None:
    if wish["serving.context"] == "auto":
        wish["serving.context"] = "max"
    roomy = {
        field: wish[field] + more for field in ("hardware.host.memory", "hardware.host.pinnable")
    }
    small, large = both(wish, {**wish, **roomy})
    assert small.context.effective <= large.context.effective
    if small.context.effective == large.context.effective:
        assert small.experts.slots <= large.experts.slots
    if small.experts.placement == large.experts.placement:
        assert small.kv_cache.snapshot_slots <= large.kv_cache.snapshot_slots


@settings(BOUNDED, max_examples=6)
@given(wish=wishes(device="cuda"), less=st.integers(0, 8 * MIB))
def test_a_larger_reserve_never_gives_more(wish: Wish, less: int) -> None:
    if wish["serving.context"] == "auto":
        wish["serving.context"] = "max"
    wish["hardware.gpu.memory"] += less
    larger = {**wish, "hardware.gpu.reserve": wish["hardware.gpu.reserve"] + less}
    found = planned(larger)
    assume(isinstance(found, Plan))
    assert isinstance(found, Plan)
    plenty = planned(wish)
    assert isinstance(plenty, Plan), str(plenty)
    assert found.context.effective <= plenty.context.effective
    if found.context.effective == plenty.context.effective:
        assert found.experts.slots <= plenty.experts.slots


@settings(BOUNDED, max_examples=6)
@given(wish=wishes(device="cuda"))
def test_fp8_keys_never_give_fewer_pages_or_slots_than_bf16(wish: Wish) -> None:
    """But for the space of 32,768 tokens in which their pages lie wide, where no linear layers lend theirs."""
    if wish["serving.context"] == "auto":
        wish["serving.context"] = "max"
    space = 32_768 * 4 * wish["model.geometry.num_kv_heads"] * wish["model.geometry.head_dim"]
    memory = wish["hardware.gpu.memory"] + (0 if wish["model.geometry.linear"] else space)
    wide, narrow = both(
        {**wish, "cache.kv_dtype": "bf16"},
        {**wish, "cache.kv_dtype": "fp8", "hardware.gpu.memory": memory},
    )
    assert wide.context.effective <= narrow.context.effective
    if wide.experts.placement == narrow.experts.placement:
        assert wide.kv_cache.pages <= narrow.kv_cache.pages
    if wide.context.effective == narrow.context.effective:
        assert wide.experts.slots <= narrow.experts.slots


PLAIN: Wish = {
    "model.family": "minimax_m2",
    "model.geometry.full_attention_interval": 1,
    "model.geometry.linear": None,
    "model.geometry.shared_intermediate_size": 0,
}


def test_one_layer_is_offloaded_wherever_its_slots_fit() -> None:
    one = {"model.geometry.num_layers": 1, "experts.placement": "offload", "serving.requests": 1}
    wish = {**PLAIN, **one, "serving.context": 64, "hardware.cpu.memory": 28 * MIB}
    assert isinstance(planned(wish), Plan)


def test_auto_finds_a_context_wherever_max_does() -> None:
    wish = {**PLAIN, "model.geometry.num_layers": 3, "hardware.cpu.memory": 47_300_000}
    wish |= {"model.geometry.max_position_embeddings": 40_000}
    assert isinstance(planned({**wish, "serving.context": "max"}), Plan)
    assert isinstance(planned({**wish, "serving.context": "auto"}), Plan)


@pytest.mark.parametrize(
    ("wrong", "fields"),
    [
        ({"model.family": "qwen3_moe"}, ["linear", "shared_intermediate_size"]),
        (
            {**PLAIN, "model.geometry.shared_intermediate_size": 16},
            ["shared_intermediate_size"],
        ),
        ({"model.geometry.shared_intermediate_size": 0}, ["shared_intermediate_size"]),
        ({**PLAIN, "model.family": "qwen3_5_moe"}, ["linear", "shared_intermediate_size"]),
    ],
    ids=[
        "linear layers of qwen3_moe",
        "shared expert of minimax_m2",
        "no shared expert of qwen3_5_moe",
        "no linear layers of qwen3_5_moe",
    ],
)
def test_a_geometry_that_the_family_cannot_have_is_refused(wrong: Wish, fields: list[str]) -> None:
    found = planned({**wrong, "hardware.cpu.memory": GIB})
    assert isinstance(found, PlanError) and found.exit_code == 2
    assert [refusal.field for refusal in found.refusals] == [
        f"model.geometry.{field}" for field in fields
    ]
