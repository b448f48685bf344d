"""With which operands a kernel of a plan is launched: what it is compiled for beside its constants."""

from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.operands import LaunchForm, Operand
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Step
from firmtoken.compiler.steps import steps_of
from firmtoken.compiler.unroll import parse_reference


def launch_forms(plan: Plan, row: KernelChoice) -> tuple[LaunchForm, ...]:
    """Each form in which the plan launches the kernel of this row, once, in order of their text."""
    places = {
        **{weight.name: Operand(dtype=weight.dtype, shape=weight.shape) for weight in plan.weights},
        **{
            buffer.name: Operand(
                dtype=buffer.dtype,
                shape=tuple(size for size in buffer.shape if isinstance(size, int)),
            )
            for buffer in plan.buffers
            if buffer.kind in ("activation", "host")
        },
    }
    forms = {}
    for step in _steps(plan, row):
        named = {name: parse_reference(text)[0] for name, text in step.operands.items()}
        form = LaunchForm(
            operands={name: places[at] for name, at in sorted(named.items()) if at in places}
        )
        forms[str(form)] = form
    return tuple(forms[text] for text in sorted(forms))


def most_rows(plan: Plan, row: KernelChoice) -> int:
    """Rows of the largest launch of this row's kernel; of kernels of pairs the tokens."""
    schedule = plan.schedule
    by_sequence = all(step.rows == "sequences" for step in _steps(plan, row))
    if row.phase == "decode" or by_sequence:
        return schedule.max_num_seqs
    return max(schedule.max_num_seqs, schedule.mixer_tile, schedule.moe_chunk)


def _steps(plan: Plan, row: KernelChoice) -> list[Step]:
    return [
        step
        for name, program in plan.programs.named()
        if (name == "decode") == (row.phase == "decode")
        for step in steps_of(program)
        if (step.op, step.kernel) == (row.op, row.kernel)
    ]
