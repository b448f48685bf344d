"""`fuse`: runs of primitive ops to the one op that does them all (D13); each fused op has a reference kernel."""

from dataclasses import dataclass, replace

from firmtoken.compiler.ops import find_op
from firmtoken.compiler.program import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A run of primitive ops and the op it becomes."""

    run: tuple[str, ...]
    op: str


# Longest first, so that add+norm wins over norm alone.
FUSIONS = (
    Fusion(run=("q_norm", "k_norm", "rope", "kv_write"), op="qk_norm_rope_kv"),
    Fusion(run=("q_row_norm", "k_row_norm", "rope", "kv_write"), op="row_norm_rope_kv"),
    Fusion(run=("conv", "gates", "delta", "gated_norm"), op="gdn"),
    Fusion(
        run=("shared_gate_up", "shared_silu", "shared_down", "shared_scale"), op="shared_expert"
    ),
    Fusion(run=("add", "norm"), op="add_norm"),
    Fusion(run=("router", "top_k"), op="route"),
    Fusion(run=("router", "biased_top_k"), op="route_sigmoid"),
    Fusion(run=("gate_up", "silu_mul"), op="moe_gate_up"),
    Fusion(run=("weighted_sum", "residual"), op="combine"),
    Fusion(run=("final_norm", "lm_head"), op="head"),
    Fusion(run=("norm",), op="add_norm"),
    Fusion(run=("add",), op="add_norm"),
)


def fuse(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps of one block with every known run joined; what only the run itself reads disappears."""
    fused: list[Step] = []
    position = 0
    while position < len(steps):
        match = _match(steps, position)
        if match is None:
            fused.append(steps[position])
            position += 1
            continue
        end = position + len(match.run)
        fused.append(_join(steps[position:end], match.op))
        position = end
    return tuple(fused)


def _match(steps: tuple[Step, ...], position: int) -> Fusion | None:
    for fusion in FUSIONS:
        run = tuple(step.op for step in steps[position : position + len(fusion.run)])
        if run == fusion.run:
            return fusion
    return None


def _join(run: tuple[Step, ...], op: str) -> Step:
    """One step with the outside reads and writes of the run, and the operands that the op declares."""
    declared = find_op(op)
    names = {name.rstrip("?") for name in (*declared.reads, *declared.writes, *declared.weights)}
    operands: dict[str, str] = {}
    reads: list[str] = []
    written: list[str] = []
    for step in run:
        reads += [ref for ref in step.reads if ref not in written and ref not in reads]
        written += [ref for ref in step.writes if ref not in written]
        operands |= {name: ref for name, ref in step.operands.items() if name in names}
    bound = set(operands.values())
    return replace(
        run[0],
        op=op,
        reads=tuple(ref for ref in reads if ref in bound),
        writes=tuple(ref for ref in written if ref in bound),
        weights=tuple(ref for step in run for ref in step.weights),
        operands=operands,
        rows=run[-1].rows,
    )
