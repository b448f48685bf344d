"""Tables that say once what repeats, and lose nothing that is chosen or last."""

from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from firmtoken.compiler.folded_tables import frontier_table, kernel_table
from firmtoken.compiler.plan import Plan

Plans = Callable[..., Plan]
PROFILES = Path(__file__).resolve().parents[2] / "profiles"
SHIPPED = sorted(path.stem for path in PROFILES.glob("*.yaml"))


def rows_of(plan: Plan) -> list[str]:
    """The frontier's lines below its heading."""
    lines = frontier_table(plan)
    start = next(
        number for number, line in enumerate(lines) if line.startswith("  ") and "2k prompt" in line
    )
    rows = takewhile(lambda line: " % " in line, lines[start + 1 :])  # below them may stand a note
    return [line.split()[0] for line in rows]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_chosen_row_and_the_last_stay(plan_of: Plans, name: str) -> None:
    plan = plan_of(name)
    shown = rows_of(plan)
    chosen = next(row for row in plan.frontier if row.chosen)
    assert f"{chosen.context:,}" in shown
    assert shown[-1] == f"{plan.frontier[-1].context:,}"
    assert "<- chosen" in "\n".join(frontier_table(plan))
    assert len(shown) == len(set(shown))


def test_equal_neighbours_are_one_row_that_says_from_where_on(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen")
    text = "\n".join(frontier_table(plan))
    assert text.count("100 %") == 2
    assert "<- chosen, as from 8,192 on" in text
    assert "the last with every expert resident" in text


def test_together_slower_than_alone_is_not_left_unexplained(plan_of: Plans) -> None:
    note = "4 together write less than one alone"
    for name in SHIPPED:
        chosen = next(row for row in plan_of(name).frontier if row.chosen)
        slower = chosen.decode_tokens_per_s_full < chosen.decode_tokens_per_s
        assert (note in "\n".join(frontier_table(plan_of(name)))) == slower, name
    assert note in "\n".join(frontier_table(plan_of("4090-minimax")))


def test_rows_that_differ_all_stay(plan_of: Plans) -> None:
    plan = plan_of("tiny-cpu")
    assert rows_of(plan) == [f"{row.context:,}" for row in plan.frontier]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_kernel_is_in_the_table(plan_of: Plans, name: str) -> None:
    plan = plan_of(name)
    text = "\n".join(kernel_table(plan))
    for row in plan.kernels:
        assert row.op in text
        assert row.kernel in text
    assert len(kernel_table(plan)) < len(plan.kernels)


def test_a_kernel_that_is_not_like_the_others_is_marked(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen")
    odd = replace(plan.kernels[3], evidence="compiled", status="ready")
    text = "\n".join(
        kernel_table(replace(plan, kernels=(*plan.kernels[:3], odd, *plan.kernels[4:])))
    )
    assert "most are documented" in text
    [line] = [line for line in text.splitlines() if line.endswith("compiled, ready")]
    assert line.split()[0] == odd.op
