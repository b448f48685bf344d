"""What does not fit is refused with what is needed, what there is, the field, and the largest value that fits."""

import re
from collections.abc import Callable

import pytest

from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import Split

Splits = Callable[..., Split]


def refusal(split_of: Splits, name: str, *overrides: str) -> Refusal:
    with pytest.raises(PlanError) as caught:
        split_of(name, *overrides)
    assert caught.value.exit_code == 3
    (found,) = caught.value.refusals
    assert found.code == "does_not_fit"
    return found


def largest(found: Refusal) -> int:
    match = re.search(r"at most (\d+)", found.hint)
    assert match is not None, found.hint
    return int(match[1])


@pytest.mark.report(10, 13)
def test_the_largest_context_in_the_hint_fits_and_one_more_page_does_not(split_of: Splits) -> None:
    machine = ("hardware.gpu.memory=12GiB", "hardware.gpu.reserve=7GiB")
    found = refusal(split_of, "qwen", "serving.context=256k", *machine)
    assert found.field == "serving.context"
    assert "are needed" in found.message and "are available" in found.message
    assert split_of("qwen", f"serving.context={largest(found)}", *machine).context == largest(found)
    refusal(split_of, "qwen", f"serving.context={largest(found) + 64}", *machine)


def test_the_largest_slots_in_the_hint_fit_and_one_more_does_not(split_of: Splits) -> None:
    machine = ("hardware.gpu.memory=16GiB",)
    found = refusal(split_of, "qwen", "experts.slots=10000", *machine)
    assert found.field == "experts.slots"
    most = largest(found)
    assert sum(split_of("qwen", f"experts.slots={most}", *machine).experts.slots_per_layer) == most
    refusal(split_of, "qwen", f"experts.slots={most + 40}", *machine)


def test_the_largest_pool_in_the_hint_fits(split_of: Splits) -> None:
    found = refusal(split_of, "qwen", "serving.pool=64M")
    assert found.field == "serving.pool"
    assert split_of("qwen", f"serving.pool={largest(found)}").pool == largest(found)


def test_resident_that_does_not_fit_names_both_remedies(split_of: Splits) -> None:
    found = refusal(
        split_of,
        "qwen",
        "experts.placement=resident",
        "cache.kv_dtype=bf16",
        "serving.context=256k",
    )
    assert found.field == "experts.placement"
    assert "serving.context" in found.hint and "experts.placement: auto" in found.hint


def test_a_bank_larger_than_the_host_is_refused(split_of: Splits) -> None:
    found = refusal(
        split_of, "minimax", "hardware.host.memory=64GiB", "hardware.host.pinnable=48GiB"
    )
    assert found.field == "hardware.host.memory"
    assert "15,872 experts" in found.message and "64.00 GiB" in found.message


def test_a_bank_that_cannot_be_pinned_is_refused(split_of: Splits) -> None:
    found = refusal(split_of, "minimax", "hardware.host.pinnable=100GiB")
    assert found.field == "hardware.host.pinnable"


def test_a_host_too_small_for_a_bank_still_offers_the_context_without_one(
    split_of: Splits,
) -> None:
    found = refusal(
        split_of,
        "qwen",
        "cache.kv_dtype=bf16",
        "serving.context=256k",
        "hardware.host.memory=8GiB",
        "hardware.host.pinnable=8GiB",
    )
    assert found.field == "hardware.host.memory"
    assert "where every expert fits the device" in found.hint
    assert largest(found) > 65_536


def test_a_device_too_small_for_anything_is_named(split_of: Splits) -> None:
    found = refusal(split_of, "qwen", "hardware.gpu.memory=4GiB")
    assert found.field == "hardware.gpu.memory"
    assert "weights" in found.hint


def test_a_layer_without_a_slot_is_a_contradiction(split_of: Splits) -> None:
    with pytest.raises(PlanError, match="fewer than one for each of 40 layers") as caught:
        split_of("qwen", "experts.slots=39")
    assert caught.value.exit_code == 2
    exact = split_of("qwen", "experts.slots=40").experts
    assert exact.slots_per_layer == (1,) * 40


@pytest.mark.report(13)
@pytest.mark.parametrize(
    "overrides",
    [
        ("serving.context=256k", "hardware.gpu.memory=12GiB", "hardware.gpu.reserve=7GiB"),
        ("experts.slots=9000", "hardware.gpu.memory=16GiB"),
        ("experts.placement=resident", "hardware.gpu.memory=16GiB"),
        ("serving.pool=100M", "hardware.gpu.memory=16GiB"),
        ("hardware.gpu.memory=3GiB",),
    ],
)
def test_the_ledger_in_the_hint_adds_up_to_what_is_needed(
    split_of: Splits, overrides: tuple[str, ...]
) -> None:
    found = refusal(split_of, "qwen", *overrides)
    listed = found.hint.partition("needed are ")[2]
    parts = re.findall(r"([\d.,]+) (KiB|MiB|GiB)", listed)
    unit = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    total = sum(float(number.replace(",", "")) * unit[name] for number, name in parts)
    needed = re.search(r"([\d.,]+) (KiB|MiB|GiB) are needed", found.message)
    assert needed is not None and parts
    assert total == pytest.approx(float(needed[1].replace(",", "")) * unit[needed[2]], rel=2e-3)
