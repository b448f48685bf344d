"""`fold_shared`: a decode step's shared expert as one more expert of every row, in the routed experts' launches (D13).

Two launches a layer are saved. Only where all experts are resident: elsewhere the shared expert is what runs while the
routed ones are fetched.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.passes.lower_experts import ROUTED
from firmtoken.compiler.passes.name_kernels import Formats
from firmtoken.compiler.plan import Programs
from firmtoken.compiler.program import Body, Item, Step
from firmtoken.compiler.steps import map_bodies, steps_of

SHARED = "shared_expert"


def fold_shared(
    programs: Programs,
    formats: Formats,
    kernels: Sequence[KernelChoice],
    cards: Sequence[KernelCard],
    named: Collection[str],
) -> Programs:
    """The programs of a resident layout, changed if each kernel of decode's routed experts takes the shared one.

    `named`: keys under which the profile names a kernel; one that is named for the shared expert is launched.
    """
    steps = {step.op: step for step in steps_of(programs.decode)}
    if SHARED not in steps or not {SHARED, f"{SHARED}.decode"}.isdisjoint(named):
        return programs
    routed = {(step.op, "decode", formats.of(step)) for step in map(steps.__getitem__, ROUTED)}
    chosen = {(row.op, row.kernel) for row in kernels if (row.op, row.phase, row.format) in routed}
    taken = formats.of(steps[SHARED])
    if any(taken not in card.takes_shared for card in cards if (card.op, card.name) in chosen):
        return programs
    return replace(programs, decode=map_bodies(programs.decode, _folded))


def _folded(body: Body) -> Body:
    shared = next((item for item in body if isinstance(item, Step) and item.op == SHARED), None)
    if shared is None:
        return body
    return tuple(_joined(item, shared) for item in body if item is not shared)


def _joined(item: Item, shared: Step) -> Item:
    if not isinstance(item, Step) or item.op not in ROUTED:
        return item
    given = shared.operands
    prefix = given["s"].rpartition(".")[0]
    between = {"shared_a": f"{prefix}.shared_a", "share": f"{prefix}.share"}
    if item.op == "moe_gate_up":
        weights = {"shared_gate_up": given["gate_up"], "shared_gate": given["gate"]}
        reads, writes = item.reads, (*item.writes, *between.values())
        operands = weights | between
    else:
        weights = {"shared_down": given["down"]}
        reads, writes = (*item.reads, *between.values()), (*item.writes, given["s"])
        operands = weights | between | {"s": given["s"]}
    return replace(
        item,
        reads=reads,
        writes=writes,
        weights=tuple(weights.values()),
        operands={**item.operands, **operands},
    )
