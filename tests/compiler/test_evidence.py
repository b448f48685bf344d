"""Evidence labels the rows that it is about, and nothing else of a plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.evidence import CompiledKernel, label_kernels
from firmtoken.compiler.launch_forms import launch_forms
from firmtoken.compiler.plan import Plan

PlanOf = Callable[..., Plan]


@pytest.fixture
def plan(plan_of: PlanOf) -> Plan:
    return plan_of("4090-qwen")


def head_of(plan: Plan) -> KernelChoice:
    return next(row for row in plan.kernels if row.op == "head")


def shown(plan: Plan) -> CompiledKernel:
    row = head_of(plan)
    return CompiledKernel(
        op=row.op,
        kernel=row.kernel,
        format=row.format,
        constants=dict(row.constants),
        forms=frozenset(str(form) for form in launch_forms(plan, row)),
        rows=plan.schedule.max_num_seqs,
        capability="8.9",
        triton="3.7.1",
    )


def compiled_rows(plan: Plan) -> list[tuple[str, str]]:
    return [(row.op, row.phase) for row in plan.kernels if row.evidence == "compiled"]


def test_every_phase_of_the_kernel_is_labelled_and_nothing_else_changes(plan: Plan) -> None:
    labelled = label_kernels(plan, [shown(plan)])
    assert compiled_rows(labelled) == [("head", "decode"), ("head", "prefill")]
    rows = tuple(
        replace(row, evidence=before.evidence)
        for row, before in zip(labelled.kernels, plan.kernels, strict=True)
    )
    assert replace(labelled, kernels=rows) == plan
    assert labelled.fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"op": "linear"},
        {"kernel": "other"},
        {"format": "bf16"},
        {"constants": {"eps": 1e-6}},
        {"forms": frozenset({"last bf16[2048], logits fp32[7]"})},
        {"rows": 3},
        {"capability": "9.0"},
        {"triton": "3.6.0"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_it_counts_for_exactly_what_it_names(plan: Plan, change: dict[str, object]) -> None:
    assert compiled_rows(label_kernels(plan, [replace(shown(plan), **change)])) == []  # type: ignore[arg-type]  # one field


def test_a_better_label_stays(plan: Plan) -> None:
    rows = tuple(replace(row, evidence="measured by x on y") for row in plan.kernels)
    measured = replace(plan, kernels=rows)
    assert label_kernels(measured, [shown(plan)]) == measured


def test_a_plan_for_the_cpu_has_no_such_kernels(plan_of: PlanOf, plan: Plan) -> None:
    tiny = plan_of("tiny-cpu")
    assert label_kernels(tiny, [shown(plan)]) == tiny
