"""Ways to break a plan, one fault each: the twelve of issue 5, for `verify` and for the dynamic proof alike."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Body, Item, Program, Step
from firmtoken.compiler.steps import map_bodies, map_steps

PREFILLS = ("prefill", "extend")
OFFLOADED = ("decode", *PREFILLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A plan made wrong, and what `verify` must say of it, as a pattern."""

    name: str
    change: Callable[[Plan], Plan]
    objection: str
    order: bool = False
    """Some legal order of its launches gives another answer."""
    hybrid: bool = False
    """There is something to break only where layers have states."""


def with_program(plan: Plan, name: str, change: Callable[[Program], Program]) -> Plan:
    """One program changed."""
    program = dict(plan.programs.named())[name]
    return replace(plan, programs=replace(plan.programs, **{name: change(program)}))


def with_steps(plan: Plan, names: tuple[str, ...], change: Callable[[Step], Step]) -> Plan:
    """Every step of these programs changed."""
    for name in names:
        plan = with_program(plan, name, lambda program: map_steps(program, change))
    return plan


def with_buffer(plan: Plan, name: str, **fields: object) -> Plan:
    """One buffer changed."""
    buffers = tuple(
        replace(row, **fields) if row.name == name else row  # type: ignore[arg-type]  # test shorthand
        for row in plan.buffers
    )
    return replace(plan, buffers=buffers)


def without_waits(plan: Plan, names: tuple[str, ...], word: str) -> Plan:
    """Nobody waits for events with this word in their name."""

    def forget(step: Step) -> Step:
        return replace(step, waits=tuple(event for event in step.waits if word not in event))

    return with_steps(plan, names, forget)


def on_side_stream(plan: Plan, names: tuple[str, ...], op: str) -> Plan:
    """An op goes beside `main`, with nothing to wait for."""

    def move(step: Step) -> Step:
        return replace(step, stream="link", waits=()) if step.op == op else step

    return with_steps(plan, names, move)


def ignore_holds(plan: Plan) -> Plan:
    """Decode's admission takes victims in a layer that an open span counts on."""
    return _with_rows(plan, "admit", respects_holds=False)


def ignore_stream(plan: Plan) -> Plan:
    """A kernel runs on the default stream, wherever it is launched."""
    return _with_rows(plan, "linear", ignores_stream=True)


def _with_rows(plan: Plan, op: str, **fields: bool) -> Plan:
    kernels = tuple(
        replace(row, **fields) if row.op == op else row  # type: ignore[arg-type]  # test shorthand
        for row in plan.kernels
    )
    return replace(plan, kernels=kernels)


def forget_snapshots(plan: Plan) -> Plan:
    """No program waits for the copies of states that are under way."""
    for name in OFFLOADED:
        plan = with_program(plan, name, lambda program: replace(program, entry_waits=()))
    return plan


def park_among_activations(plan: Plan) -> Plan:
    """Hidden states of a span lie where decode steps work."""
    return with_buffer(plan, "prefill.hid", space="activations", stride=(0,))


def swap_offsets(plan: Plan) -> Plan:
    """Weights and activations, of different sizes, change places."""
    offsets = {space.name: space.offset for space in plan.spaces}
    offsets["weights"], offsets["activations"] = offsets["activations"], offsets["weights"]
    spaces = tuple(replace(space, offset=offsets[space.name]) for space in plan.spaces)
    return replace(plan, spaces=spaces)


def shrink_line(plan: Plan) -> Plan:
    """The first line of the device's ledger is a byte short."""
    device = plan.memory.device
    first, *rest = device.lines
    lines = (replace(first, bytes=first.bytes - 1), *rest)
    return replace(plan, memory=replace(plan.memory, device=replace(device, lines=lines)))


def halve_ring(plan: Plan) -> Plan:
    """All missing experts are staged in the same half."""
    row = next(row for row in plan.buffers if row.name == "staged")
    return with_buffer(plan, "staged", ring=tuple(min(ring, 1) for ring in row.ring))


def forget_sentinel(plan: Plan) -> Plan:
    """All pages are promised to requests."""
    return replace(plan, kv_cache=replace(plan.kv_cache, pages=plan.kv_cache.pages - 1))


def fetch_twice(plan: Plan) -> Plan:
    """Two streams copy the missing experts to the same slots."""

    def double(body: Body) -> Body:
        items: list[Item] = []
        for item in body:
            items.append(item)
            if isinstance(item, Step) and item.op == "fetch":
                items.append(replace(item, stream="main", waits=(), records=()))
        return tuple(items)

    return with_program(plan, "prefill", lambda program: map_bodies(program, double))


MUTANTS = (
    Mutant(
        name="fetch->GEMM",
        change=lambda plan: without_waits(plan, OFFLOADED, ".fetched"),
        objection="too early: decode.fetch",
        order=True,
    ),
    Mutant(
        name="GEMM->next fetch, its edge",
        change=lambda plan: without_waits(plan, ("prefill",), "prefill.resolved"),
        objection=r"writes `staged\[(2|0,2|1,1)\]` while prefill.moe_down",
        order=True,
    ),
    Mutant(
        name="GEMM->next fetch, one half instead of two",
        change=halve_ring,
        objection=r"reads `staged\[(0|0,0)\]`, its bytes hold `staged\[(1|0,1)\]`",
        order=True,
    ),
    Mutant(
        name="layer l+1 staged before the previous decode ended",
        change=lambda plan: on_side_stream(plan, ("prefill",), "resolve"),
        objection="too early: decode may still write it",
        order=True,
    ),
    Mutant(
        name="a decode step that ignores a hold",
        change=ignore_holds,
        objection=r"a stale view: `table\[",
        order=True,
    ),
    Mutant(
        name="snapshot against state update",
        change=forget_snapshots,
        objection="while park.snapshot",
        order=True,
        hybrid=True,
    ),
    Mutant(
        name="parked against decode region",
        change=park_among_activations,
        objection=r"reads `prefill.hid\[0\]`, its bytes hold `",
        order=True,
    ),
    Mutant(name="swapped offsets", change=swap_offsets, objection="overlaps the one before it"),
    Mutant(name="a line shrunk by one byte", change=shrink_line, objection="lines sum to"),
    Mutant(
        name="an ignores_stream kernel beside a side stream",
        change=ignore_stream,
        objection="ignores its stream: refused",
    ),
    Mutant(name="a missing sentinel page", change=forget_sentinel, objection="sentinel"),
    Mutant(
        name="two writers",
        change=fetch_twice,
        objection=r"over `staged\[(0|0,0)\]` while prefill.fetch",
    ),
)
"""`sample->embed across steps` is the host's order, not the plan's: see `test_mutants.py` and the dynamic proof."""
