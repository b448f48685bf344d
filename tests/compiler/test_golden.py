"""The shipped plans, abridged to what a reviewer should see change: memory, places, streams and programs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firmtoken.compiler.explain import context_line
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Block, BlockOf, Body, Loop, Step, When, Yield

CASES = Path(__file__).parent / "cases"


@pytest.mark.parametrize(
    "name",
    [
        "tiny-cpu",
        "tiny-cpu-resident",
        "4090-qwen",
        "4090-qwen3-30b",
        "4090-minimax",
        "pro6000-minimax",
    ],
)
def test_the_plan_is_the_golden_one(
    name: str, plan_of: Callable[..., Plan], golden: Callable[[Path, str], None]
) -> None:
    golden(CASES / f"{name}.plan.txt", "\n".join(abridge(plan_of(name))) + "\n")


def abridge(plan: Plan) -> Iterator[str]:
    yield context_line(plan)
    yield f"context: {plan.context.because}"
    yield f"experts: {plan.experts.because}"
    for side, ledger in (("device", plan.memory.device), ("host", plan.memory.host)):
        yield f"\n{side}: {ledger.total:,} of {ledger.budget:,}, {ledger.free:,} free"
        for line in ledger.lines:
            yield f"  {line.name:<18}{line.bytes:>16,}  {line.count:,} x {line.unit_bytes:,}  {line.because}"
    yield f"\nschedule: {plan.schedule.because}"
    yield f"streams: {plan.streams.layout}, {plan.streams.because}"
    for edge in plan.streams.edges:
        yield f"  {edge.event}: {edge.frm} -> {edge.to}"
    yield "\nplaces"
    for row in plan.buffers:
        index = f"[{','.join(row.index)}]" if row.index else ""
        yield f"  {row.name + index:<32}{row.space:<18}{row.offset:>12,}{row.bytes:>16,}  {row.dtype}"
    for name, program in plan.programs.named():
        yield f"\n{name}: captured {program.captured}, bounds {program.bounds}, waits {program.entry_waits}"
        yield from write(program.body, "  ")
        for block, body in program.blocks.items():
            yield f"  block {block}"
            yield from write(body, "    ")


def write(body: Body, indent: str) -> Iterator[str]:
    for item in body:
        match item:
            case Step():
                yield indent + step_text(item)
            case Loop():
                yield f"{indent}loop {item.loop} in {item.count}"
                yield from write(item.body, indent + "  ")
            case When():
                yield f"{indent}when {item.when}"
                yield from write(item.body, indent + "  ")
            case Block():
                yield f"{indent}{item.block}"
            case BlockOf():
                yield f"{indent}<kind>{item.suffix}"
            case Yield():
                yield f"{indent}yield {item.program}"


def step_text(step: Step) -> str:
    text = (
        f"{step.stream} {step.op}/{step.kernel} {' '.join(step.reads)} -> {' '.join(step.writes)}"
    )
    for word in ("waits", "records", "holds", "drops"):
        if references := getattr(step, word):
            text += f" {word} {' '.join(references)}"
    return text + "".join(f" {name} {index}" for name, index in step.indices.items())
