"""The row-wise FP8 product that hangs on compute capability 8.9 before torch 2.12 (H-01)."""

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Step
from firmtoken.compiler.steps import steps_of

Plans = Callable[..., Plan]

NAME = "scaled_mm_rowwise"
OLD, NEW = "hardware.software.torch=2.11", "hardware.software.torch=2.13"
BY_NAME = f"kernels.linear={NAME}"
NOTHING_ELSE = "kernels.linear={avoid: [triton_fp8, scaled_mm_tensorwise]}"


def row_wise_steps(plan: Plan) -> Iterator[Step]:
    for _, program in plan.programs.named():
        yield from (step for step in steps_of(program) if step.kernel == NAME)


@pytest.mark.report(44)
def test_by_name_it_is_refused_with_the_id_and_the_alternative(plan_of: Plans) -> None:
    with pytest.raises(PlanError) as caught:
        plan_of("4090-qwen", OLD, BY_NAME)
    (refusal,) = caught.value.refusals
    assert (caught.value.exit_code, refusal.field, refusal.code) == (3, "kernels.linear", "hazard")
    assert refusal.message == (
        f"`{NAME}` cannot be used for `linear`: H-01 (compute capability 8.9, torch before 2.12): the row-wise FP8 "
        "GEMM ignores its stream, races a side stream and spins for ever; safe: tensor-wise FP8 per part, or torch "
        "2.12 or later"
    )
    assert refusal.hint == "use `scaled_mm_tensorwise`"


def test_its_alternative_can_be_named(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen", OLD, "kernels.linear=scaled_mm_tensorwise")
    assert {row.kernel for row in plan.kernels if row.op == "linear"} == {"scaled_mm_tensorwise"}


def test_with_a_newer_torch_it_is_accepted_and_still_only_planned(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen", NEW, BY_NAME)
    rows = [row for row in plan.kernels if row.op == "linear"]
    assert {(row.kernel, row.status) for row in rows} == {(NAME, "planned")}
    assert list(row_wise_steps(plan))


@pytest.mark.report(44)
@pytest.mark.parametrize("context", ["2", "255", "256", "8k", "64k", "max"])
def test_at_no_length_is_it_in_a_plan_of_an_older_torch(context: str, plan_of: Plans) -> None:
    sizes = (f"serving.context={context}", "serving.requests=1", "hardware.gpu.memory=16GiB")
    plan = plan_of("4090-qwen", OLD, *sizes)
    assert plan.programs.decode.captured and len(plan.streams.names) > 1
    assert not list(row_wise_steps(plan))
    rejected = {
        row.kernel: row.because
        for choice in plan.kernels
        if choice.op == "linear"
        for row in choice.rejected
    }
    assert rejected[NAME].startswith("H-01 (")


@pytest.mark.parametrize(("graphs", "layout"), list(product(("auto", "off"), ("auto", "single"))))
def test_rather_no_plan_than_one_with_it(graphs: str, layout: str, plan_of: Plans) -> None:
    settings = (f"graphs={graphs}", f"streams.layout={layout}", NOTHING_ELSE)
    with pytest.raises(PlanError, match=f"`{NAME}`: H-01 "):
        plan_of("4090-qwen", OLD, *settings)
    assert list(row_wise_steps(plan_of("4090-qwen", NEW, *settings)))
