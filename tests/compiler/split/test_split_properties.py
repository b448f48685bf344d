"""What holds of every split: an independent sum, D2 by enumeration, explicit numbers, monotony."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.facts import ModelFacts, Split
from firmtoken.compiler.ledger import Ledger
from firmtoken.compiler.ledger_lines import num_pages
from firmtoken.compiler.slot_split import deal, exact_slots
from firmtoken.schema.profile import Profile

MIB = 2**20


def check_ledger(side: Ledger) -> None:
    total = 0
    for row in side.lines:
        exact = row.unit_bytes * row.count
        assert row.bytes % row.align == 0
        assert 0 <= row.bytes - exact < row.align
        assert row.bytes > 0
        total += row.bytes
    assert side.total == total
    assert side.free == side.budget - total >= 0
    assert side.budget <= side.capacity


def check_split(split: Split, facts: ModelFacts, profile: Profile, slot_bytes: int) -> None:
    check_ledger(split.device)
    check_ledger(split.host)
    requests = profile.serving.requests
    lines = {row.name: row for row in split.device.lines}
    page = split.pages
    assert lines["kv_pages"].count == page
    assert split.state_slots == (2 * requests + 1 if facts.num_linear else 0)
    experts = split.experts
    slots = sum(experts.slots_per_layer)
    assert len(experts.slots_per_layer) == facts.num_layers
    assert max(experts.slots_per_layer) - min(experts.slots_per_layer) <= 1
    assert min(experts.slots_per_layer) >= 1
    assert max(experts.slots_per_layer) <= facts.experts_per_layer
    if split.placement == "resident":
        assert slots == facts.total_experts
        assert experts.staging_slots == experts.overflow_slots == 0
        assert "bank" not in {row.name for row in split.host.lines}
        return
    least = min(experts.slots_per_layer)
    misses = max(1, facts.experts_per_layer - least)
    half, left = divmod(experts.staging_slots, 2)
    assert left == 0
    if experts.ring == "whole":
        assert half == misses and experts.waves == 1
    else:
        assert experts.waves % 2 == 0 and half <= 64
        assert half * experts.waves >= misses > (half - 1) * experts.waves
        assert experts.staging_slots <= 2 * misses
    assert experts.overflow_slots == min(
        requests * facts.experts_per_token, facts.experts_per_layer
    )
    held = sum(row.bytes for name, row in lines.items() if name.startswith("experts."))
    assert held == (slots + experts.staging_slots + experts.overflow_slots) * slot_bytes
    if profile.experts.slots == "auto" and slots < facts.total_experts:
        # One slot more may need a larger ring: another number of waves makes it grow by a leap.
        larger = exact_slots(facts, requests, slots + 1, experts.layout)
        more = 1 + larger.staging_slots - experts.staging_slots
        assert split.device.free < max(2, more) * slot_bytes


@st.composite
def geometries(draw: st.DrawFn) -> ModelFacts:
    hybrid = ModelFacts(
        family="qwen3_5_moe",
        layer_kinds=("linear", "full") * draw(st.integers(1, 8)),
        hidden_size=64 * draw(st.integers(1, 8)),
        vocab_size=1_000,
        max_positions=draw(st.sampled_from([1_000, 4_096, 32_768, 262_144])),
        tensors=(),
        experts_per_layer=draw(st.sampled_from([8, 32, 100, 256])),
        experts_per_token=draw(st.integers(1, 8)),
        expert_width=64,
        shared_width=0,
        kv_elements_per_token=128 * draw(st.integers(1, 16)),
        conv_elements=768,
        recurrent_elements=4_096,
        active_parameters=draw(st.integers(10**5, 10**9)),
        attention_flops_per_pair=4_096,
    )
    experts = hybrid.num_layers * hybrid.experts_per_token * hybrid.expert_parameters
    hybrid = replace(hybrid, active_parameters=hybrid.active_parameters + experts)
    if draw(st.booleans()):
        return hybrid
    return replace(
        hybrid,
        layer_kinds=("full",) * hybrid.num_layers,
        conv_elements=0,
        recurrent_elements=0,
    )


def with_memory(profile: Profile, num_bytes: int) -> Profile:
    gpu = profile.hardware.gpu
    assert gpu is not None
    hardware = profile.hardware.model_copy(
        update={"gpu": gpu.model_copy(update={"memory": num_bytes})}
    )
    return profile.model_copy(update={"hardware": hardware})


def with_serving(profile: Profile, **values: object) -> Profile:
    return profile.model_copy(update={"serving": profile.serving.model_copy(update=values)})


def with_slots(profile: Profile, slots: int) -> Profile:
    experts = profile.experts.model_copy(update={"slots": slots})
    return profile.model_copy(update={"experts": experts})


@settings(max_examples=150, deadline=None)
@given(
    facts=geometries(),
    slot_kib=st.integers(1, 512),
    memory=st.integers(1_200 * MIB, 6_000 * MIB),
    requests=st.integers(1, 16),
    context=st.one_of(st.integers(2, 300_000), st.sampled_from(["auto", "max"])),
)
def test_every_split_sums_up_and_fits(
    split_any: Callable[..., Split],
    make_profile: Callable[..., Profile],
    qwen_with: Callable[..., object],
    facts: ModelFacts,
    slot_kib: int,
    memory: int,
    requests: int,
    context: int | str,
) -> None:
    case = qwen_with(facts=facts, slot_bytes=slot_kib * 1024)
    profile = with_memory(make_profile(), memory)
    profile = with_serving(profile, context=context, requests=requests)
    try:
        split = split_any(case, profile)
    except PlanError as error:
        (refusal,) = error.refusals
        assert refusal.code == "does_not_fit"
        assert error.exit_code == 3
        return
    check_split(split, facts, profile, slot_kib * 1024)
    if isinstance(context, int):
        assert split.context == min(context, facts.max_positions)
    assert 2 <= split.context <= facts.max_positions
    assert split.pages == num_pages(split.pool, 64 if facts.num_linear else 16, requests)
    assert split.pool >= split.context


@settings(max_examples=60, deadline=None)
@given(
    facts=geometries(),
    share=st.floats(0, 1),
    memory=st.integers(1_500 * MIB, 5_000 * MIB),
    more=st.integers(0, 1_000 * MIB),
)
def test_at_equal_slots_more_memory_never_gives_less_context(
    split_any: Callable[..., Split],
    make_profile: Callable[..., Profile],
    qwen_with: Callable[..., object],
    facts: ModelFacts,
    share: float,
    memory: int,
    more: int,
) -> None:
    case = qwen_with(facts=facts, slot_bytes=65_536)
    slots = max(facts.num_layers, int(share * facts.total_experts))
    profile = with_slots(with_serving(make_profile(), context="max"), slots)
    try:
        small = split_any(case, with_memory(profile, memory))
    except PlanError:
        return
    large = split_any(case, with_memory(profile, memory + more))
    assert sum(small.experts.slots_per_layer) == sum(large.experts.slots_per_layer) == slots
    assert large.context >= small.context


def lengths(pool: int, requests: int) -> Iterator[tuple[int, ...]]:
    for parts in product(range(1, pool + 1), repeat=requests - 1):
        last = pool - sum(parts)
        if last >= 1:
            yield (*parts, last)


@pytest.mark.parametrize("page_size", [1, 2, 4, 8])
@pytest.mark.parametrize("requests", [1, 2, 3])
def test_any_requests_whose_lengths_sum_to_the_pool_fit(page_size: int, requests: int) -> None:
    for pool in range(requests, 24):
        worst = max(
            sum(-(-length // page_size) for length in parts) for parts in lengths(pool, requests)
        )
        assert worst + 1 <= num_pages(pool, page_size, requests)


def test_examples_of_d2() -> None:
    assert num_pages(8_209, 64, 1) == 129 + 0 + 1
    assert num_pages(1_000, 64, 4) == 16 + 3 + 1
    assert num_pages(65_536, 64, 4) == 1_024 + 3 + 1


def test_left_over_slots_go_to_the_ends_first() -> None:
    assert deal(10, 4) == (3, 2, 2, 3)
    assert deal(11, 4) == (3, 3, 2, 3)
    assert deal(8, 4) == (2, 2, 2, 2)
    assert deal(3, 1) == (3,)
