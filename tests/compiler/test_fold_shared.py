"""A decode step's shared expert is part of the routed experts' launches where all are resident and kernels take it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Program, Step
from firmtoken.compiler.steps import steps_of
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

PlanOf = Callable[..., Plan]
RESIDENT = "h200-qwen"
PROFILE = Path(__file__).resolve().parents[2] / f"profiles/{RESIDENT}.yaml"


def step(program: Program, op: str) -> Step | None:
    return next((step for step in steps_of(program) if step.op == op), None)


def names(plan: Plan) -> set[str]:
    return {buffer.name for buffer in plan.buffers}


def test_a_resident_decode_step_has_no_launch_of_the_shared_expert(plan_of: PlanOf) -> None:
    plan = plan_of(RESIDENT)
    decode = plan.programs.decode
    assert step(decode, "shared_expert") is None
    gate_up, down, combine = (step(decode, op) for op in ("moe_gate_up", "moe_down", "combine"))
    assert gate_up is not None and down is not None and combine is not None
    assert gate_up.weights == ("shared_gate_up[l]", "shared_gate[l]")
    assert down.weights == ("shared_down[l]",)
    between = {"decode.shared_a", "decode.share"}
    assert between <= set(gate_up.writes) and between <= set(down.reads)
    assert "decode.s" in down.writes and "decode.s" in combine.reads
    assert between <= names(plan)


def test_prompts_keep_the_launch(plan_of: PlanOf) -> None:
    programs = plan_of(RESIDENT).programs
    for program in (programs.prefill, programs.extend):
        assert step(program, "shared_expert") is not None
    assert "prefill.shared_a" not in names(plan_of(RESIDENT))


@pytest.mark.parametrize(
    "plan",
    [
        ("4090-qwen", "hardware.gpu.memory=12GiB"),  # it runs while routed experts are fetched
        ("tiny-cpu-resident",),
        (RESIDENT, "kernels.shared_expert.decode=triton_nvfp4"),
        (RESIDENT, "model.quantization.shared_expert=bf16"),
        ("h200-minimax",),  # there is none
    ],
    ids=" ".join,
)
def test_elsewhere_routed_experts_are_launched_alone(
    plan_of: PlanOf, plan: tuple[str, ...]
) -> None:
    found = plan_of(*plan)
    decode = found.programs.decode
    has_one = found.model.geometry["shared_intermediate_size"] > 0
    assert (step(decode, "shared_expert") is not None) == has_one
    gate_up = step(decode, "moe_gate_up")
    assert gate_up is not None and not gate_up.weights
    assert "decode.shared_a" not in names(found)


@pytest.mark.parametrize("op", ["moe_gate_up", "moe_down"])
def test_one_kernel_that_does_not_take_it_keeps_the_launch(op: str) -> None:
    cards = tuple(replace(card, takes_shared=()) if card.op == op else card for card in CARDS)
    plan = compile_profile(load_profile(str(PROFILE), ()).profile, cards)
    assert step(plan.programs.decode, "shared_expert") is not None


def test_what_lies_between_the_halves_is_a_buffer_and_no_workspace(plan_of: PlanOf) -> None:
    apart = plan_of(RESIDENT, "kernels.shared_expert.decode=triton_nvfp4")
    spaces = {space.name for space in plan_of(RESIDENT).spaces}
    assert {space.name for space in apart.spaces} - spaces == {"workspace.shared_expert"}
