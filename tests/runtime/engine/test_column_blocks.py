"""A chunk's down projection in blocks of columns gives the numbers of doing all columns at once."""

from collections.abc import Callable

import pytest
import torch

from firmtoken.compiler.passes import bound_batches
from firmtoken.compiler.program import Value
from firmtoken.runtime.kernels.combine import reference

Prompt = Callable[..., list[int]]
GATHER = "kernels={moe_gate_up: torch_gather, moe_down: torch_gather}"


@pytest.mark.parametrize("blocks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("profile", "kernels"),
    [
        ("tiny-cpu", "kernels={}"),
        ("tiny-cpu-resident", "kernels={}"),
        ("tiny-cpu", GATHER),
    ],
)
def test_blocks_change_nothing_but_the_arena(
    start,
    prompt: Prompt,
    monkeypatch: pytest.MonkeyPatch,
    blocks: int,
    profile: str,
    kernels: str,
) -> None:
    overrides = (kernels, "schedule.prefill_chunk=128")
    whole = start(profile, *overrides)
    monkeypatch.setitem(bound_batches.COLUMN_BLOCKS, "cpu", blocks)
    cut = start(profile, *overrides)
    assert cut.plan.programs.prefill.bounds["columns"] == blocks
    rows = [
        bench.interpreter.views.tensor(Value("prefill.rows")).shape[1] for bench in (cut, whole)
    ]
    assert rows == [256 // blocks, 256]
    for length in (1, 64, 129, 300):
        assert cut.ask(prompt(length, length), 4) == whole.ask(prompt(length, length), 4)
        logits = [
            bench.interpreter.views.tensor(Value("prefill.logits"))[:1] for bench in (cut, whole)
        ]
        torch.testing.assert_close(*logits, rtol=0, atol=1e-4)


def test_blocks_in_the_wrong_order_are_noticed(
    start, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bound_batches.COLUMN_BLOCKS, "cpu", 2)
    right = start("tiny-cpu-resident").ask(prompt(300), 4)
    original = reference.column_block
    monkeypatch.setattr(
        reference, "column_block", lambda whole, block, width: original(whole, 1 - block, width)
    )
    assert start("tiny-cpu-resident").ask(prompt(300), 4) != right
