"""The self-check of a start on a real GPU: how near each kernel is to its reference, and how long it takes.

    PYTHONPATH=.src python tests/device/self_check.py [--profile NAME ...] [--set FIELD=VALUE ...]

A plain script, no test of CI. Random weights straight into the plan's places. For each plan a line for each op and
operand (worst difference, its bound, seconds of all its launches once they are compiled), and what a whole check takes.
Every refusal is a line, and none ends the script.
"""

import argparse
import json
import time
import traceback
from pathlib import Path

import torch
from random_weights import fill_random

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.self_check import (
    Checked,
    Checker,
    KernelWrong,
    Kind,
    check_kernels,
    summary,
)
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.memory.arena import Arena
from firmtoken.schema.load import load_profile

SMALL = ["hardware.gpu.memory=24GiB", "serving.context=64k", "serving.requests=4"]
"""All resident in the memory of a smaller card."""
TINY = str(Path(__file__).parent / "tiny-cuda.yaml")
LIMIT_S = 75.0
BEGUN = time.perf_counter()


def say(**line: object) -> None:
    print(json.dumps({**line, "at": round(time.perf_counter() - BEGUN, 1)}), flush=True)


def run_kind(checker: Checker, kind: Kind, *, quiet: bool) -> list[Checked]:
    """What was found; what was refused or broke is a line of its own."""
    found: list[Checked] = []
    for case, launch in kind:
        line = None
        try:
            found.append(checker.check(case, launch))
        except KernelWrong as wrong:
            line = {"case": "failed", "message": str(wrong), "hint": wrong.hint}
        except Exception as error:  # another launch may still tell something
            text = "".join(traceback.format_exception(error))[-900:]
            line = {"case": "failed", "op": launch.step.step.op, "rows": case.rows, "error": text}
        if line is not None and not quiet:
            say(**line)
    return found


def run_kinds(checker: Checker, *, again: bool) -> None:
    """All of them; a second time with what was found and how long it took."""
    for kind in checker.kinds():
        begun = time.perf_counter()
        found = run_kind(checker, kind, quiet=again)
        if not again:
            continue
        launch = kind[0][1]
        head = {
            "op": launch.step.step.op,
            "kernel": launch.choice.kernel,
            "phase": launch.choice.phase,
            "weights": " ".join(value.name for value in launch.step.weights),
        }
        say(case="seconds", **head, launches=len(kind), s=round(time.perf_counter() - begun, 3))
        worst: dict[str, Checked] = {}
        for one in sorted(found, key=lambda one: one.worst.share):
            worst[one.worst.operand] = one
        for operand, one in worst.items():
            say(
                case="worst",
                **head,
                operand=operand,
                rows=one.rows,
                found=one.worst.found,
                bound=one.worst.bound,
                share=round(one.worst.share, 3),
            )


def left_behind(plan: Plan, arena: Arena) -> dict[str, int]:
    """Bytes that are not zero in spaces that hold neither weights nor experts nor scratch."""
    kept = {weight.space for weight in plan.weights}
    kept |= {row.space for row in plan.buffers if row.dtype == "slot"}
    found = {}
    for space in plan.spaces:
        if space.memory == "device" and space.name not in kept and "workspace" not in space.name:
            raw = arena.bytes_of(space.name, 0, space.bytes)
            found[space.name] = int(
                sum(torch.count_nonzero(part) for part in raw.split(2**28)) if len(raw) else 0
            )
    return found


def check_plan(name: str, overrides: list[str]) -> None:
    plan = compile_profile(load_profile(name, overrides).profile, CARDS)
    arena = Arena(plan.spaces, {}, "cuda")
    interpreter = Interpreter(plan, arena)
    fill_random(plan, interpreter.views)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    say(case="plan", name=plan.profile.name, reserved=before)
    with torch.inference_mode():
        checker = Checker(plan, interpreter)
        begun = time.perf_counter()
        run_kinds(checker, again=False)
        say(case="with compilation", s=round(time.perf_counter() - begun, 2))
        torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        run_kinds(checker, again=True)
        say(case="again", s=round(time.perf_counter() - begun, 2))
        checker.clear()
        del checker
    begun = time.perf_counter()
    try:
        said = summary(check_kernels(plan, interpreter, lambda: None))
    except KernelWrong as wrong:
        said = str(wrong)
        say(case="failed", message=said)
    say(case="whole", s=round(time.perf_counter() - begun, 2), said=said)
    say(
        case="memory",
        peak_beside=torch.cuda.max_memory_reserved() - before,
        reserved_beside=torch.cuda.memory_reserved() - before,
        left_behind=left_behind(plan, arena),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    torch.set_num_threads(16)
    asked = [(name, arguments.set) for name in arguments.profile]
    for name, overrides in asked or [("h200-qwen", SMALL), (TINY, [])]:
        if time.perf_counter() - BEGUN > LIMIT_S:
            say(case="skipped", name=name)
            continue
        try:
            check_plan(name, overrides)
        except Exception as error:  # the next plan may still tell something
            say(case="failed", name=name, error="".join(traceback.format_exception(error))[-1500:])
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
