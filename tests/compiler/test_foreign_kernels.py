"""Kernels that users ask about and FirmToken does not call: each has its reason on every card, and a name gets it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.explain import explain
from firmtoken.compiler.kernel_fitness import Launch, describe_launch, unfitness
from firmtoken.compiler.passes.bound_batches import bound_batches
from firmtoken.compiler.passes.choose_cache import choose_cache
from firmtoken.compiler.passes.choose_kernels import choose_kernels
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.foreign import FOREIGN
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
CASES = Path(__file__).parent / "cases"
BY_CAPABILITY = ("3090-qwen", "4090-qwen", "h200-qwen", "5090-qwen")
CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")

Plans = Callable[..., Plan]


def launch_of(name: str, *overrides: str) -> Launch:
    loaded = load_profile(str(PROFILES / f"{name}.yaml"), overrides).profile
    _, facts = describe_model(loaded)
    return describe_launch(loaded, choose_cache(loaded, facts))


def reason(card: KernelCard, launch: Launch) -> str:
    return unfitness(card, card.phases[0], card.formats[0], launch)


def test_the_reasons_are_the_golden_ones(golden: Callable[[Path, str], None]) -> None:
    golden(CASES / "foreign-kernels.txt", "\n".join(reasons()) + "\n")


def reasons() -> Iterator[str]:
    launches = {name: launch_of(name) for name in BY_CAPABILITY}
    for card in FOREIGN:
        if card.op == "moe_down":
            continue  # as moe_gate_up, see below
        yield f"{card.op} {card.name}"
        for launch in launches.values():
            major, minor = launch.capability
            yield f"  {f'{major}.{minor}':<6}{reason(card, launch)}"


def test_both_products_of_the_experts_have_the_same_kernels() -> None:
    up, down = ([card for card in FOREIGN if card.op == op] for op in ("moe_gate_up", "moe_down"))
    assert up == [replace(card, op="moe_gate_up") for card in down] != []


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_none_is_ever_usable(capability: str) -> None:
    # The settings under which the fewest hazards hold.
    launch = launch_of(
        "4090-qwen",
        f"hardware.gpu.compute_capability={capability}",
        "serving.requests=1",
        "serving.context=8k",
        "experts.slots=100",
        "cache.kv_dtype=bf16",
        "graphs=off",
        "streams.layout=single",
    )
    assert [card.name for card in FOREIGN if not reason(card, launch)] == []


def test_each_says_what_it_is_and_only_these_do() -> None:
    assert {card.status for card in FOREIGN} == {"foreign"}
    assert [card for card in CARDS if card.not_called] == list(FOREIGN)


@pytest.mark.parametrize("profile", BY_CAPABILITY)
def test_one_named_by_a_profile_is_refused_with_its_reason(profile: str) -> None:
    launch = launch_of(profile)
    for card in FOREIGN:
        used = ((card.op, card.phases[0], card.formats[0]),)
        loaded = load_profile(
            str(PROFILES / f"{profile}.yaml"), (f"kernels.{card.op}={card.name}",)
        ).profile
        _, facts = describe_model(loaded)
        with pytest.raises(PlanError) as caught:
            batches, cache = bound_batches(loaded, facts), choose_cache(loaded, facts)
            choose_kernels(loaded, facts, batches, cache, used, CARDS)
        (refusal,) = caught.value.refusals
        assert caught.value.exit_code == 3
        assert refusal.message.endswith(f"cannot be used for `{card.op}`: {reason(card, launch)}")
        usable = [
            other
            for other in CARDS
            if other.op == card.op and not unfitness(other, *used[0][1:], launch)
        ]
        # What nothing launches yet is no way out beside what runs.
        ready = [other for other in usable if other.status == "ready"]
        assert usable
        for other in usable:
            assert (f"`{other.name}`" in refusal.hint) == (other in (ready or usable))


@pytest.mark.parametrize(
    ("profile", "lines"),
    [
        (
            "3090-qwen",
            (
                "not marlin: H-09 (993 or more expert slots)",
                "not flashinfer_fp4_cutlass: H-07 (compute capability below 10.0)",
                "not flashinfer_b12x: H-07",
                "not gluon_w4a4: this card has no FP4 units",
            ),
        ),
        (
            "5090-qwen",
            (
                "not marlin: H-09 (993 or more expert slots)",
                "not flashinfer_fp4_cutlass: H-12 (compute capability from 12.0)",
                "not flashinfer_b12x: H-14 (2 or more requests)",
                "not flashinfer_trtllm_gen: its binaries are for compute capability 10.0 and 10.3 only",
                "not gluon_w4a4: not called: FreeToken's own kernel",
            ),
        ),
    ],
)
def test_explain_shows_the_reasons(profile: str, lines: tuple[str, ...], plan_of: Plans) -> None:
    text = explain(plan_of(profile), "kernels.moe_gate_up.decode")
    assert "kernel = triton_nvfp4" in text
    assert [line for line in lines if f"  {line}" not in text] == []


def test_an_unknown_name_is_answered_with_those_that_can_run_there() -> None:
    loaded = load_profile(str(PROFILES / "4090-qwen.yaml"), ("kernels.gdn=zzzz",)).profile
    _, facts = describe_model(loaded)
    with pytest.raises(PlanError) as caught:
        choose_kernels(
            loaded,
            facts,
            bound_batches(loaded, facts),
            choose_cache(loaded, facts),
            (("gdn", "decode", "bf16"),),
            CARDS,
        )
    (refusal,) = caught.value.refusals
    assert refusal.hint == "use `triton_step`"


def test_where_nothing_is_usable_foreign_kernels_are_no_part_of_the_answer() -> None:
    planned = [replace(card, min_capability=(13, 0)) for card in CARDS if card.op == "gdn"]
    loaded = load_profile(str(PROFILES / "4090-qwen.yaml"), ()).profile
    _, facts = describe_model(loaded)
    with pytest.raises(PlanError) as caught:
        choose_kernels(
            loaded,
            facts,
            bound_batches(loaded, facts),
            choose_cache(loaded, facts),
            (("gdn", "decode", "bf16"),),
            planned,
        )
    (refusal,) = caught.value.refusals
    assert "triton_step" in refusal.message and "fla_triton" not in refusal.message
