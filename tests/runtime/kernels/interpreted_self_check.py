"""The self-check of a start on real kernels under Triton's interpreter: run by `test_triton_self_check.py`.

    TRITON_INTERPRET=1 python interpreted_self_check.py CASE

The plan is one for a GPU, over an arena on the CPU. The interpreter cuts bf16 off instead of rounding it, which takes
most of a bound, and its products of bf16 are wrong, as a kernel might be: of those the self-check must say so.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine import program
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.self_check import Checker, KernelWrong
from firmtoken.runtime.engine.streams import Streams
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.launch_operand import in_operand_order
from firmtoken.runtime.kernels.operand_order import columns_at
from firmtoken.runtime.memory import arena
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

PROFILE = Path(__file__).parents[2] / "device" / "tiny-cuda.yaml"
SMALL = ("hardware.gpu.memory=4GiB", "serving.context=4k", "schedule.prefill_chunk=512")
RIGHT = ("add_norm", "combine", "copy", "embed", "gdn", "qk_norm_rope_kv", "restore", "route")
MOST_ROWS = 2


def make_plan() -> Plan:
    """Kernels that do not begin before the one ahead of them has ended: there is no such thing here."""
    plan = compile_profile(load_profile(str(PROFILE), SMALL).profile, CARDS)
    rows = []
    for row in plan.kernels:
        early = {"early": 0} if "early" in row.constants else {}
        rows.append(replace(row, constants={**row.constants, **early}))
    return replace(plan, kernels=tuple(rows))


def make_interpreter(plan: Plan) -> Interpreter:
    """With random weights; those in codes are of no use."""
    arena.pin = lambda *_: None
    program.open_streams = lambda plan, position, *_, **__: (
        Streams(plan.streams.names, position),
        None,
    )
    interpreter = Interpreter(plan, Arena(plan.spaces, {}))
    for weight in plan.weights:
        count = sum(weight.axis in ("layer", kind) for kind in plan.model.layer_kinds)
        for ordinal in range(count if weight.axis else 1):
            for section in interpreter.views.sections(weight, ordinal).values():
                section.copy_(torch.randn(section.shape) * 0.1)
    return interpreter


def check_right() -> None:
    """Kernels without products of bf16 are within their bounds."""
    plan = make_plan()
    checker = Checker(plan, make_interpreter(plan))
    seen = set()
    for kind in checker.kinds():
        for case, launch in kind:
            decode = launch.choice.phase == "decode" or launch.choice.op in ("copy", "restore")
            if launch.choice.op in RIGHT and decode and case.rows <= MOST_ROWS:
                checker.check(case, launch)
                seen.add(launch.choice.op)
    assert seen == set(RIGHT)


def check_wrong() -> None:
    """A product of bf16 is refused."""
    plan = make_plan()
    checker = Checker(plan, make_interpreter(plan))
    for kind in checker.kinds():
        case, launch = kind[0]
        if launch.choice.kernel == "triton_fp8_tiles":
            try:
                checker.check(case, launch)
            except KernelWrong as wrong:
                assert "kernel `triton_fp8_tiles` of `linear` does not compute" in str(wrong)
                return
    raise AssertionError("nothing was refused")


def check_order() -> None:
    """What is said of operand order without Triton is what kernels put in it."""
    for quads in (0, 1):
        x = torch.randn(3, 256)
        found = in_operand_order(x, torch.zeros(x.numel() * 4, dtype=torch.uint8), quads=quads)
        assert torch.equal(found, x[:, columns_at(256, quads=quads)])


CASES: dict[str, Callable[[], None]] = {
    "right": check_right,
    "wrong": check_wrong,
    "order": check_order,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.inference_mode():
        for name in sys.argv[1:] or CASES:
            CASES[name]()
