"""Launches that start early keep the rules of `early_start.py`, and every decode kernel of a GPU starts early."""

import ast
from pathlib import Path

import pytest

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.steps import steps_of
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

KERNELS = Path(__file__).resolve().parents[3] / "runtime/kernels"
WAIT = "start_next_after_last"
WRITES = {"store", "store_token", "atomic_add", "is_last"}
FIRST = "embed"
"""Before it in a program there is no kernel."""


def called(node: ast.AST) -> list[tuple[int, str]]:
    """Line and name of what is called."""
    return [
        (call.lineno, call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute | ast.Name)
    ]


def waiting_functions() -> dict[str, ast.FunctionDef]:
    """Triton functions that wait themselves."""
    found = {}
    for path in sorted(KERNELS.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or path.name == "early_start.py":
                continue
            if WAIT in {name for _, name in called(node)}:
                found[f"{path.parent.name}/{path.stem}.{node.name}"] = node
    return found


FUNCTIONS = waiting_functions()


def test_all_decode_kernels_are_looked_at() -> None:
    names = {title.rpartition(".")[2] for title in FUNCTIONS}
    assert {
        "gate_up_pairs",
        "_multiply",
        "step_columns",
        "attend_parts",
        "write_heads",
        "pick",
    } <= names


@pytest.mark.parametrize("title", FUNCTIONS)
def test_nothing_is_written_before_the_launch_before_has_ended(title: str) -> None:
    lines = called(FUNCTIONS[title])
    first = min(line for line, name in lines if name == WAIT)
    assert [name for line, name in lines if name in WRITES and line < first] == []


@pytest.mark.parametrize("profile", ["h200-qwen", "pro6000-minimax"])
def test_every_kernel_of_a_decode_step_starts_early_where_the_card_can(profile: str) -> None:
    plan = compile_profile(load_profile(profile, ()).profile, CARDS)
    triton = {(card.op, card.name) for card in CARDS if card.builds}
    steps = {(step.op, step.kernel) for step in steps_of(plan.programs.decode)} & triton
    rows = [row for row in plan.kernels if row.phase == "decode" and (row.op, row.kernel) in steps]
    assert {"attention", "moe_gate_up", "sample"} <= {row.op for row in rows}
    late = {row.op for row in rows if not row.constants.get("early")}
    assert late <= {FIRST}
