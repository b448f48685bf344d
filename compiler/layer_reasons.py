"""Why a step of one layer is what it is: `programs.decode.L03.attention` (D13)."""

import re
from collections.abc import Iterator

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep, Value
from firmtoken.compiler.tables import paragraph
from firmtoken.compiler.unroll import unroll
from firmtoken.schema.diagnostic import did_you_mean, listing

LAYER_PATH = re.compile(r"programs\.(?P<program>[a-z]+)\.L(?P<layer>\d+)(\.(?P<op>[a-z_]+))?")


class UnknownPath(KeyError):
    """A path that leads nowhere in this plan: the sentence, and what was meant if that is near."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}"


def is_layer_path(path: str) -> bool:
    """Whether a path names a layer of a program."""
    return LAYER_PATH.fullmatch(path) is not None


def explain_layer(plan: Plan, path: str) -> list[str]:
    """The steps of a layer, or one op of it, with streams, values and the kernel's reason."""
    match = LAYER_PATH.fullmatch(path)
    assert match is not None, "asked for by `is_layer_path`"
    steps = _layer_steps(plan, match["program"], int(match["layer"]))
    chosen = [step for step in steps if match["op"] in (None, step.step.op)]
    if not chosen:
        ops = tuple(dict.fromkeys(step.step.op for step in steps))
        raise UnknownPath(
            f"this layer has no `{match['op']}`",
            did_you_mean(match["op"], ops) or f"it has {listing(ops)}",
        )
    lines = [path]
    for step in chosen:
        lines += _step_lines(plan, match["program"], step, whole=match["op"] is not None)
    return lines


def _layer_steps(plan: Plan, name: str, layer: int) -> list[BoundStep]:
    programs = {
        "decode": plan.programs.decode,
        "prefill": plan.programs.prefill,
        "extend": plan.programs.extend,
        "park": plan.programs.park,
    }
    program = programs.get(name)
    if program is None:
        known = [key for key, value in programs.items() if value is not None]
        raise UnknownPath(f"there is no program `{name}`", f"there are {listing(known)}")
    count = len(plan.model.layer_kinds)
    if layer >= count:
        raise UnknownPath(f"there is no layer {layer}", f"layers are `L00` to `L{count - 1:02}`")
    flat = unroll(program, plan.model.layer_kinds)
    return [step for step in flat if isinstance(step, BoundStep) and step.at.get("l") == layer]


def _step_lines(plan: Plan, program: str, step: BoundStep, *, whole: bool) -> Iterator[str]:
    head = f"{step.step.op} by {step.step.kernel or 'the engine'} on `{step.step.stream}`"
    yield from paragraph(head, indent="  ")
    for verb, values in (
        ("reads", step.reads),
        ("writes", step.writes),
        ("weights", step.weights),
        ("waits for", step.waits),
        ("records", step.records),
        ("holds", step.holds),
        ("drops", step.drops),
    ):
        if values:
            yield from paragraph(f"{verb} {_listed(values)}", indent="      ", first="    ")
    if not whole:
        return
    phase = "decode" if program == "decode" else "prefill"
    for row in plan.kernels:
        if (row.op, row.phase, row.kernel) == (step.step.op, phase, step.step.kernel):
            yield from paragraph(f"because: {row.because}", indent="      ", first="    ")
            for rejected in row.rejected:
                text = f"not {rejected.kernel}: {rejected.because}"
                yield from paragraph(text, indent="      ", first="    ")


def _listed(values: tuple[Value, ...]) -> str:
    return " ".join(str(value) for value in values)
