"""`name_kernels`: which launches a placement has, and the chosen kernel's name on each step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.facts import CacheChoice, ModelFacts
from firmtoken.compiler.plan import Programs
from firmtoken.compiler.program import Program, Step
from firmtoken.compiler.sessions import PHASE
from firmtoken.compiler.steps import map_steps, steps_of
from firmtoken.compiler.unroll import parse_reference

WEIGHT_OPS = ("linear", "head", "embed", "shared_expert", "route", "route_sigmoid")
KV_OPS = ("attention", "qk_norm_rope_kv", "row_norm_rope_kv")
SLOT_OPS = ("moe_gate_up", "moe_down", "fetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Format of the operand that decides, per op."""

    weights: dict[str, str]
    kv: str
    slots: str
    activations: str

    def of(self, step: Step) -> str:
        """Format by which this step's kernel is chosen."""
        if step.op in WEIGHT_OPS:
            name = next(reversed(step.weights)) if step.op == "head" else step.weights[0]
            return self.weights[parse_reference(name)[0]]
        if step.op in KV_OPS:
            return self.kv
        return self.slots if step.op in SLOT_OPS else self.activations


def formats_of(facts: ModelFacts, cache: CacheChoice, slot_format: str) -> Formats:
    """Formats of a compiled profile."""
    hidden = next(value for value in facts.values if value.name == "hid")
    return Formats(
        weights={tensor.name: tensor.dtype for tensor in facts.tensors},
        kv=cache.kv_dtype,
        slots=slot_format,
        activations=hidden.dtype,
    )


def used_kernels(
    all_programs: Sequence[Programs], formats: Formats
) -> tuple[tuple[str, str, str], ...]:
    """(op, phase, format) of every launch, in order of first use."""
    used: dict[tuple[str, str, str], None] = {}
    for programs in all_programs:
        for name, program in programs.named():
            for step in steps_of(program):
                used[step.op, PHASE[name], formats.of(step)] = None
    return tuple(used)


def rows_for(
    programs: Programs, formats: Formats, choices: Sequence[KernelChoice]
) -> tuple[KernelChoice, ...]:
    """The choices that these programs launch; another placement may need more."""
    used = set(used_kernels((programs,), formats))
    return tuple(row for row in choices if (row.op, row.phase, row.format) in used)


def name_kernels(programs: Programs, formats: Formats, choices: Sequence[KernelChoice]) -> Programs:
    """The programs with `kernel` filled in."""
    names = {(row.op, row.phase, row.format): row.kernel for row in reversed(choices)}

    def named(name: str, program: Program) -> Program:
        return map_steps(
            program,
            lambda step: replace(step, kernel=names[step.op, PHASE[name], formats.of(step)]),
        )

    park = programs.park
    return Programs(
        decode=named("decode", programs.decode),
        prefill=named("prefill", programs.prefill),
        extend=named("extend", programs.extend),
        park=None if park is None else named("park", park),
    )
