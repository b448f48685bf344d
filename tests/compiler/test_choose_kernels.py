"""Kernels are chosen by rank among the usable; each other one has its reason; names are obeyed or refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.computed_constants import RULES
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.passes.bound_batches import bound_batches
from firmtoken.compiler.passes.choose_cache import choose_cache
from firmtoken.compiler.passes.choose_kernels import choose_kernels
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[2] / "profiles"

BEST = KernelCard(
    op="attention",
    name="best",
    entry="somewhere:attention",
    phases=("decode", "prefill"),
    devices=("cuda",),
    formats=("bf16", "fp8"),
    rank=1,
    because="fastest",
)
SECOND = replace(BEST, name="second", rank=2, because="slower")
ROW_WISE = replace(BEST, op="linear", name="row_wise", formats=("fp8",), hazards=("H-01",), rank=1)
TENSOR_WISE = replace(BEST, op="linear", name="tensor_wise", formats=("fp8",), rank=2)
DECODE = ("attention", "decode", "fp8")
PREFILL = ("attention", "prefill", "fp8")


def choose(
    *cards: KernelCard,
    used: tuple[tuple[str, str, str], ...] = (DECODE,),
    profile: str = "4090-qwen",
    overrides: tuple[str, ...] = (),
) -> tuple[KernelChoice, ...]:
    loaded = load_profile(str(PROFILES / f"{profile}.yaml"), overrides).profile
    _, facts = describe_model(loaded)
    batches = bound_batches(loaded, facts)
    return choose_kernels(loaded, facts, batches, choose_cache(loaded, facts), used, cards)


def refused(
    *cards: KernelCard,
    used: tuple[tuple[str, str, str], ...] = (DECODE,),
    overrides: tuple[str, ...] = (),
) -> Refusal:
    with pytest.raises(PlanError) as caught:
        choose(*cards, used=used, overrides=overrides)
    (refusal,) = caught.value.refusals
    return refusal


def test_the_lowest_rank_wins_whatever_the_order() -> None:
    for cards in ((BEST, SECOND), (SECOND, BEST)):
        (choice,) = choose(*cards)
        assert choice.kernel == "best"
        assert choice.because == "ranks first of 2 usable kernels: fastest"
        (rejected,) = choice.rejected
        assert rejected.because == "usable; `best` ranks before it: fastest"


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"devices": ("cpu",)}, "runs on cpu, not on cuda"),
        ({"formats": ("bf16",)}, "takes bf16, not fp8"),
        ({"phases": ("prefill",)}, "for prefill only"),
        ({"min_capability": (9, 0)}, "needs compute capability 9.0, this is 8.9"),
        ({"max_capability": (8, 6)}, "ends at compute capability 8.6, this is 8.9"),
        ({"head_dims": (64, 128)}, "takes heads of 64 or 128, not 256"),
        ({"page_sizes": (16,)}, "takes pages of 16, not 64"),
        ({"requires": ("cutlass",)}, "needs cutlass, which `hardware.software` does not list"),
        ({"capturable": False}, "cannot be captured in a CUDA graph"),
        (
            {"ignores_stream": True},
            "ignores its stream, so it is refused in a graph and beside a side stream",
        ),
    ],
)
def test_an_unusable_kernel_is_rejected_with_its_reason(
    change: dict[str, object], because: str
) -> None:
    unusable = replace(BEST, **change)  # type: ignore[arg-type]  # one field of a parametrised test
    (choice,) = choose(unusable, SECOND)
    assert choice.kernel == "second"
    assert [row.because for row in choice.rejected] == [because]


def test_a_kernel_that_ignores_its_stream_may_run_where_there_is_only_one() -> None:
    card = replace(BEST, ignores_stream=True)
    (choice,) = choose(card, overrides=("graphs=off", "streams.layout=single"))
    assert choice.ignores_stream


def test_a_hazard_rejects_by_version() -> None:
    used = (("linear", "decode", "fp8"),)
    old = choose(ROW_WISE, TENSOR_WISE, used=used, overrides=("hardware.software.torch=2.11.0",))
    new = choose(ROW_WISE, TENSOR_WISE, used=used)
    assert (old[0].kernel, new[0].kernel) == ("tensor_wise", "row_wise")
    assert old[0].rejected[0].because.startswith("H-01 (compute capability 8.9, torch before 2.12)")


def test_a_hazard_named_by_the_profile_is_refused_with_the_alternative() -> None:
    refusal = refused(
        ROW_WISE,
        TENSOR_WISE,
        used=(("linear", "decode", "fp8"),),
        overrides=("kernels.linear=row_wise", "hardware.software.torch=2.11.0"),
    )
    assert (refusal.field, refusal.code) == ("kernels.linear", "hazard")
    assert "H-01" in refusal.message and "tensor-wise" in refusal.message
    assert refusal.hint == "use `tensor_wise`"


def test_a_named_kernel_is_obeyed_in_its_phase_only() -> None:
    decode, prefill = choose(
        BEST, SECOND, used=(DECODE, PREFILL), overrides=("kernels.attention.decode=second",)
    )
    assert (decode.kernel, prefill.kernel) == ("second", "best")
    assert decode.because == "`kernels.attention.decode` names it"
    assert decode.rejected[0].because == "`kernels.attention.decode` names `second`"


def test_a_name_without_a_phase_must_do_both() -> None:
    refusal = refused(
        BEST,
        replace(SECOND, phases=("decode",)),
        used=(DECODE, PREFILL),
        overrides=("kernels.attention=second",),
    )
    assert refusal.message == "`second` cannot be used for `attention`: for decode only"
    assert refusal.hint == "use `best` or name it as `kernels.attention.decode`"


def test_where_no_kernel_does_both_phases_one_is_named_for_each() -> None:
    first, last = replace(BEST, phases=("prefill",)), replace(SECOND, phases=("decode",))
    refusal = refused(first, last, used=(DECODE, PREFILL), overrides=("kernels.attention=third",))
    assert refusal.hint == (
        "name one for each phase: `kernels.attention.decode: second`, `kernels.attention.prefill: best`"
    )


def test_ops_that_one_change_would_mend_are_told_together() -> None:
    cards = [replace(BEST, op=op, min_capability=(9, 0)) for op in ("attention", "gdn", "route")]
    refusal = refused(*cards, used=tuple((card.op, "decode", "fp8") for card in cards))
    assert refusal.field == "hardware.gpu.compute_capability"
    assert refusal.message == (
        "no kernel for the ops `attention`, `gdn`, `route`: needs compute capability 9.0, this is 8.9"
    )
    assert refusal.hint == "take a card of compute capability 9.0 or later"


@pytest.mark.parametrize(
    ("change", "field", "hint"),
    [
        (
            {"requires": ("triton",)},
            "hardware.software.triton",
            "give the version of triton that the machine has",
        ),
        (
            {"head_dims": (64, 128)},
            "model.geometry.head_dim",
            "serve a model with heads of 64 or 128",
        ),
        ({"capturable": False}, "graphs", "set `graphs` to `off`"),
        (
            {"ignores_stream": True},
            "streams.layout",
            "set `graphs` to `off` and `streams.layout` to `single`",
        ),
        (
            {"formats": ("bf16",)},
            "kernels.attention",
            "serve a checkpoint of another format, or on another device",
        ),
    ],
)
def test_an_op_without_a_kernel_blames_what_keeps_the_nearest_one_away(
    change: dict[str, object], field: str, hint: str
) -> None:
    card = replace(BEST, **change)  # type: ignore[arg-type]  # one field of a parametrised test
    refusal = refused(card, overrides=("hardware.software.triton=null",))
    assert (refusal.field, refusal.hint) == (field, hint)


def test_a_name_concerns_the_formats_that_its_kernel_takes() -> None:
    other = replace(TENSOR_WISE, name="weights_only", formats=("nvfp4",))
    fp8, nvfp4 = choose(
        ROW_WISE,
        TENSOR_WISE,
        other,
        used=(("linear", "decode", "fp8"), ("linear", "decode", "nvfp4")),
        overrides=("kernels.linear=tensor_wise",),
    )
    assert (fp8.kernel, nvfp4.kernel) == ("tensor_wise", "weights_only")


def test_an_avoided_kernel_is_not_chosen() -> None:
    (choice,) = choose(BEST, SECOND, overrides=("kernels.attention={avoid: [best]}",))
    assert choice.kernel == "second"
    assert choice.rejected[0].because == "the profile avoids it"


def test_avoiding_all_is_refused_with_what_to_allow() -> None:
    refusal = refused(BEST, overrides=("kernels.attention={avoid: [best]}",))
    assert refusal.code == "no_kernel"
    assert refusal.hint == "allow `best`"


def test_unknown_names_are_refused_with_the_near_one() -> None:
    kernel = refused(BEST, overrides=("kernels.attention=bets",))
    assert (kernel.code, kernel.hint) == ("unknown_kernel", "did you mean `best`?")
    op = refused(BEST, overrides=("kernels.atention=best",))
    assert (op.code, op.hint) == ("unknown_op", "did you mean `attention`?")


def test_every_op_without_a_kernel_is_reported_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        choose(BEST, used=(("gdn", "decode", "bf16"), DECODE, ("route", "decode", "bf16")))
    assert [refusal.field for refusal in caught.value.refusals] == ["kernels.gdn", "kernels.route"]


def test_a_kernel_that_stops_at_some_size_hands_over() -> None:
    few = replace(BEST, max_rows=16)
    first, rest = choose(few, SECOND)
    assert (first.kernel, first.sizes) == ("best", (1, 16))
    assert (rest.kernel, rest.sizes[0]) == ("second", 17)


def test_a_planned_card_keeps_its_status() -> None:
    (choice,) = choose(replace(BEST, status="planned", entry=""))
    assert (choice.status, choice.entry) == ("planned", "")


def test_geometry_becomes_constants() -> None:
    attention, moe, route, embed = choose(
        BEST,
        replace(BEST, op="moe_gate_up", formats=("nvfp4",)),
        replace(BEST, op="route", formats=("bf16",)),
        replace(BEST, op="embed", formats=("bf16",)),
        used=(
            DECODE,
            ("moe_gate_up", "decode", "nvfp4"),
            ("route", "decode", "bf16"),
            ("embed", "decode", "bf16"),
        ),
    )
    assert attention.constants == {
        "num_q_heads": 16,
        "num_kv_heads": 2,
        "head_dim": 256,
        "gated": 1,
        "page_size": 64,
        "scale": 0.0625,
    }
    assert moe.constants == {"hidden_size": 2048, "expert_width": 512, "num_experts_per_token": 8}
    assert route.constants == {"num_experts_per_token": 8}
    assert embed.constants == {}


@pytest.mark.parametrize(
    ("profile", "op", "own"),
    [
        ("4090-qwen", "attention", {"parts": 128, "fp8_units": 1}),
        ("3090-qwen", "attention", {"parts": 82, "fp8_units": 0}),
        ("pro6000-minimax", "attention", {"parts": 47, "fp8_units": 1}),
        ("4090-qwen", "moe_down", {"lanes": 8, "early": 0}),
        ("pro6000-minimax", "moe_down", {"lanes": 16, "early": 1}),
    ],
)
def test_machine_and_model_become_constants_by_the_rules_that_a_card_names(
    plan_of: Callable[..., Plan], profile: str, op: str, own: dict[str, int]
) -> None:
    [row] = [row for row in plan_of(profile).kernels if (row.op, row.phase) == (op, "decode")]
    assert {name: row.constants[name] for name in own} == own


def test_every_rule_is_named_by_a_card_and_every_name_is_a_rule() -> None:
    assert {rule for card in CARDS for _, rule in card.computed} == set(RULES)
