"""The split against the ledgers of facts/prototype.md 2 and the definitions D2, D4, D8, D16."""

from collections.abc import Callable

import pytest

from firmtoken.compiler.facts import Split

Splits = Callable[..., Split]

GIB = 2**30


def line(split: Split, name: str) -> int:
    lines = {row.name: row.bytes for row in (*split.device.lines, *split.host.lines)}
    return lines.get(name, 0)


@pytest.mark.parametrize(
    "overrides",
    [
        ("cache.kv_dtype=fp8",),
        ("cache.kv_dtype=bf16",),
        ("cache.kv_dtype=fp8", "hardware.gpu.reserve=1.25GiB"),
    ],
)
def test_a_4090_holds_every_expert_of_qwen_beside_64k_and_four_requests(
    split_of: Splits, overrides: tuple[str, ...]
) -> None:
    split = split_of("qwen", "serving.context=64k", *overrides)
    assert split.placement == "resident"
    assert sum(split.experts.slots_per_layer) == 10_240
    assert (split.experts.staging_slots, split.experts.overflow_slots) == (0, 0)
    assert "no table" in split.experts_because


def test_bf16_keys_under_a_desktop_leave_at_least_97_percent(split_of: Splits) -> None:
    split = split_of("qwen", "cache.kv_dtype=bf16", "hardware.gpu.reserve=1.25GiB")
    assert sum(split.experts.slots_per_layer) >= 0.97 * 10_240


def test_headless_fp8_keeps_every_expert_up_to_about_236k(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=max", "experts.placement=resident")
    # facts/prototype.md says 258,048 with 5 states; the shadow states of D4 cost 25k of it.
    assert 230_000 < split.context < 240_000
    assert split.limited_by == "device_memory"


def test_the_lines_of_a_4090_are_those_of_the_table(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=64k", "serving.pool=64k")
    assert line(split, "weights") == 2_705_763_584  # 2,705,763,544 in two aligned tensors
    assert line(split, "kv_pages") == (1024 + 3 + 1) * 64 * 10_240
    assert line(split, "states") == 9 * 64_389_120
    assert line(split, "activations") == 174_063_616
    assert line(split, "cuda_context") == 629_145_600
    assert line(split, "graphs") == 3 * 496 * 4_096
    assert line(split, "margin") == 134_217_728
    assert line(split, "experts.cache") == 10_240 * 1_769_728
    assert line(split, "parked_hidden") == 0
    assert split.device.capacity == 25_232_932_864
    assert split.device.budget == split.device.capacity - GIB // 4


@pytest.mark.parametrize(
    ("context", "kv_dtype", "share"),
    [("64k", "fp8", 0.65), ("64k", "bf16", 0.58), ("192k", "fp8", 0.52), ("192k", "bf16", 0.31)],
)
def test_a_pro_6000_holds_the_published_share_of_minimax(
    split_of: Splits, context: str, kv_dtype: str, share: float
) -> None:
    split = split_of("minimax", f"serving.context={context}", f"cache.kv_dtype={kv_dtype}")
    assert sum(split.experts.slots_per_layer) / 15_872 == pytest.approx(share, abs=0.02)
    assert split.state_slots == split.snapshot_slots == 0


def test_what_is_left_is_less_than_one_slot(split_of: Splits) -> None:
    split = split_of("minimax", "serving.context=64k")
    assert 0 <= split.device.free < 7_962_880


@pytest.mark.parametrize("name", ["qwen", "minimax"])
def test_auto_gives_at_least_64k_under_balanced(split_of: Splits, name: str) -> None:
    split = split_of(name, "serving.context=auto")
    assert split.context >= 65_536
    assert split.warnings == ()
    assert split.limited_by == "device_memory"


def test_auto_stays_at_the_knee_where_all_experts_are_resident(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=auto")
    assert split.placement == "resident"
    larger = [row for row in split.frontier if row.context > split.context]
    assert larger and all(row.resident_fraction < 1 for row in larger)


def test_preferring_speed_takes_less_context_than_preferring_context(split_of: Splits) -> None:
    speed, balanced, context = (
        split_of("minimax", "serving.context=auto", f"serving.prefer={prefer}").context
        for prefer in ("speed", "balanced", "context")
    )
    assert speed < balanced < context


def test_a_resident_pool_grows_to_what_requests_and_prefixes_can_use(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=8k", "serving.requests=2")
    assert split.pool == 2 * 2 * 8_192
    without = split_of("qwen", "serving.context=8k", "serving.requests=2", "cache.type=none")
    assert without.pool == 2 * 8_192


def test_an_offloaded_pool_is_one_whole_request(split_of: Splits) -> None:
    assert split_of("minimax", "serving.context=64k").pool == 65_536


@pytest.mark.report(1, 8)
def test_seed_case_a_is_paid_in_pages_and_never_rounded_down(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=8209", "serving.pool=8209", "serving.requests=1")
    assert (split.context, split.pool, split.pages) == (8_209, 8_209, 129 + 0 + 1)


def test_a_number_above_the_positions_is_limited_by_the_model(split_of: Splits) -> None:
    split = split_of("minimax", "serving.context=200k")
    assert (split.context, split.limited_by) == (196_608, "model")


def test_the_host_says_so_when_it_is_what_limits(split_of: Splits) -> None:
    split = split_of(
        "qwen",
        "serving.context=max",
        "hardware.host.memory=10GiB",
        "hardware.host.pinnable=10GiB",
    )
    assert (split.placement, split.limited_by) == ("resident", "host_memory")


def test_snapshots_are_eight_a_request_or_an_eighth_of_the_host(split_of: Splits) -> None:
    assert split_of("qwen", "serving.requests=4").snapshot_slots == 32
    assert split_of("qwen", "serving.requests=1").snapshot_slots == 16
    small = split_of("qwen", "hardware.host.memory=8GiB", "hardware.host.pinnable=8GiB")
    left = 8 * GIB - 3 * GIB - 2 * 524_288
    assert small.snapshot_slots == left // 8 // 64_389_120
    assert split_of("qwen", "cache.type=none").snapshot_slots == 0


def test_a_resident_plan_has_no_bank_and_an_offloaded_one_has_all_experts(
    split_of: Splits,
) -> None:
    assert line(split_of("qwen"), "bank") == 0
    assert line(split_of("minimax", "serving.context=64k"), "bank") == 15_872 * 7_962_880


def test_explicit_slots_that_strand_memory_are_priced(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=32k", "serving.requests=1", "experts.slots=1024")
    assert sum(split.experts.slots_per_layer) == 1_024
    (warning,) = split.warnings
    assert warning.code == "stranded_memory"
    assert "GiB" in warning.message and "9,216 more experts" in warning.message
    assert "tokens/s" in warning.message
    assert warning.hint == "set `experts.slots` to `auto` (10,240)"


def test_a_pool_that_no_load_can_use_is_a_warning(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=64k", "serving.pool=1M")
    assert split.pool == 2**20
    (warning,) = split.warnings
    assert warning.code == "stranded_memory"
    assert "524,288 tokens" in warning.message
    assert warning.hint == "set `serving.pool` to at most 524288, or to `auto`"


def test_offload_by_name_where_everything_fits_is_obeyed_and_a_warning(split_of: Splits) -> None:
    split = split_of(
        "qwen", "serving.context=8k", "experts.placement=offload", "hardware.gpu.memory=32GiB"
    )
    assert split.placement == "offload"
    assert sum(split.experts.slots_per_layer) == 10_240
    assert [warning.code for warning in split.warnings] == ["stranded_memory"]


def test_auto_never_strands(split_of: Splits) -> None:
    split = split_of("qwen", "serving.context=32k", "serving.requests=1")
    assert split.warnings == ()


@pytest.mark.report(13)
def test_a_lowered_floor_is_a_warning(split_of: Splits) -> None:
    split = split_of(
        "minimax",
        "serving.context=auto",
        "hardware.gpu.memory=15GiB",
        "cache.kv_dtype=bf16",
    )
    codes = [warning.code for warning in split.warnings]
    assert codes == ["floor_lowered", "small_context"]


def test_a_span_hides_the_missing_bank_and_no_more(split_of: Splits) -> None:
    split = split_of("minimax", "serving.context=64k")
    assert split.prefill_span == 8_192
    assert line(split, "parked_hidden") == 8_192 * 2 * 3_072
    explicit = split_of("minimax", "serving.context=64k", "schedule.prefill_span=32k")
    assert explicit.prefill_span == 32_768


def test_a_small_card_stages_in_waves(split_of: Splits) -> None:
    small = ("hardware.gpu.memory=23.5GiB", "serving.context=32k")
    split = split_of(
        "minimax", *small, "hardware.gpu.flops.bf16=165TFLOPS", "hardware.link.h2d=25GB/s"
    )
    assert split.experts.ring == "waves"
    assert 96 <= split.experts.staging_slots <= 128
    # On a card that computes faster beside its link, a chunk hides too little of the bank.
    fast = (*small, "hardware.gpu.flops.bf16=990TFLOPS", "hardware.link.h2d=40GB/s")
    assert split_of("minimax", *fast).experts.ring == "whole"


def test_the_frontier_has_the_chosen_row_once_and_falls_with_context(split_of: Splits) -> None:
    rows = split_of("minimax", "serving.context=64k").frontier
    assert [row.chosen for row in rows].count(True) == 1
    assert [row.context for row in rows] == sorted({row.context for row in rows})
    shares = [row.resident_fraction for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert {8_192, 12_288, 65_536, 98_304, 196_608} <= {row.context for row in rows}
