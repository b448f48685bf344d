"""`ft plan`: the plan as a table, as JSON or YAML, or one of its programs step by step."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from firmtoken.compiler.explain import table
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_data, plan_to_json
from firmtoken.compiler.program import BoundStep, BoundYield, Program
from firmtoken.compiler.unroll import unroll
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.output import YAML_SUFFIXES, put, yaml_text
from firmtoken.runtime.exit_codes import WRONG


def show_plan(
    argument: str,
    overrides: Sequence[str],
    *,
    form: str | None,
    output: str | None,
    program: str | None,
    inspect: Callable[[Plan], None] | None = None,
) -> int:
    """Print or write it, once `inspect` has nothing against it; the exit code."""
    if program is not None and form is not None:
        raise Failure(
            "`--unroll` goes not with `--format`: steps are lines of text",
            exit_code=WRONG,
            hint="run `ft plan` once for each",
        )
    compiled = compile_argument(argument, overrides)
    if output is not None and os.path.realpath(output) == str(compiled.loaded.path):
        raise Failure(
            f"`--output {output}` is the profile itself",
            exit_code=WRONG,
            hint=f"write beside it: `--output {compiled.loaded.path.stem}.lock.json`",
        )
    plan = compiled.plan
    if inspect is not None:
        inspect(plan)
    text = _text(plan, form or _usual_form(output)) if program is None else _steps(plan, program)
    put(text, output)
    return 0


def _usual_form(output: str | None) -> str:
    """A table for people; a file is a lock, in the form that its suffix says."""
    if output is None:
        return "table"
    return "yaml" if Path(output).suffix in YAML_SUFFIXES else "json"


def _text(plan: Plan, form: str) -> str:
    match form:
        case "json":
            return plan_to_json(plan, indent=True).decode() + "\n"
        case "yaml":
            return yaml_text(plan_to_data(plan))
        case _:
            return table(plan).rstrip("\n") + "\n"


def _steps(plan: Plan, name: str) -> str:
    programs: dict[str, Program | None] = {
        "decode": plan.programs.decode,
        "prefill": plan.programs.prefill,
        "extend": plan.programs.extend,
        "park": plan.programs.park,
    }
    known = ", ".join(f"`{known}`" for known, program in programs.items() if program is not None)
    program = programs.get(name)
    if program is None:
        raise Failure(f"no program `{name}` in this plan", exit_code=WRONG, hint=f"it has {known}")
    flat = unroll(program, plan.model.layer_kinds)
    return "".join(f"{_step_line(index, step)}\n" for index, step in enumerate(flat))


def _step_line(index: int, step: BoundStep | BoundYield) -> str:
    """One step: where, op and kernel, stream, then what it reads, writes and waits for."""
    place = " ".join(f"{name}={value}" for name, value in step.at.items())
    head = f"{index:5d}  {place:14s}"
    if isinstance(step, BoundYield):
        return f"{head}  yield {step.program}"
    parts = [f"{step.step.op}={step.step.kernel}", f"on {step.step.stream}"]
    for word, values in (
        ("reads", step.reads),
        ("writes", step.writes),
        ("waits", step.waits),
        ("records", step.records),
        ("holds", step.holds),
        ("drops", step.drops),
    ):
        if values:
            parts.append(f"{word} {' '.join(map(str, values))}")
    return f"{head}  {' | '.join(parts)}"
