"""(b) of `verify`: every space is a ledger line, no value leaves its space, every step binds what its op declares."""

from collections.abc import Iterator
from math import prod

from firmtoken.compiler.ops import Op, find_op
from firmtoken.compiler.places import Buffer, Space, Weight
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Step
from firmtoken.compiler.sessions import PHASE
from firmtoken.compiler.steps import steps_of
from firmtoken.compiler.tensor_bytes import ELEMENT_BYTES
from firmtoken.compiler.unroll import parse_reference


def check_places(plan: Plan) -> Iterator[str]:
    """Spaces against lines, spaces against each other, values against spaces."""
    yield from _check_spaces(plan)
    spaces = {space.name: space for space in plan.spaces}
    counts = {
        "": 1,
        "layer": len(plan.model.layer_kinds),
        "linear": plan.model.layer_kinds.count("linear"),
        "full": plan.model.layer_kinds.count("full"),
        "chunk": plan.programs.prefill.bounds["chunks"],
        "wave": plan.programs.prefill.bounds.get("waves", 1),
        "owner": 1,
    }
    end = 0
    for weight in sorted(plan.weights, key=lambda row: row.offset):
        if weight.offset < end:
            yield f"weight `{weight.name}` overlaps the one before it"
        end = weight.offset + weight.stride * (counts[weight.axis] - 1) + weight.bytes
        yield from _check_weight(weight, spaces.get(weight.space), end)
    spanned = -(-plan.schedule.prefill_span // plan.schedule.moe_chunk)
    counts["chunk"] = min(counts["chunk"], spanned)
    for buffer in plan.buffers:
        yield from _check_buffer(buffer, spaces.get(buffer.space), counts)


def _check_spaces(plan: Plan) -> Iterator[str]:
    lines = {
        "device": {line.name: line.bytes for line in plan.memory.device.lines},
        "host": {line.name: line.bytes for line in plan.memory.host.lines},
    }
    end = 0
    for space in sorted(plan.spaces, key=lambda row: row.offset):
        due = lines[space.memory].get(space.line)
        if due != space.bytes:
            yield f"space `{space.name}` has {space.bytes:,} bytes, its line `{space.line}` {due}"
        if space.memory == "device":
            if space.offset < end:
                yield f"space `{space.name}` overlaps the one before it"
            end = space.offset + space.bytes
    if end > plan.memory.device.budget:
        yield "the spaces do not fit the device's budget"


def _check_weight(weight: Weight, space: Space | None, end: int) -> Iterator[str]:
    if space is None:
        yield f"weight `{weight.name}` is in no space"
    elif end > space.bytes:
        yield f"weight `{weight.name}` ends at {end:,}, its space has {space.bytes:,} bytes"


def _shape_bytes(buffer: Buffer) -> int:
    """Bytes of a fully numeric shape; 0 where a unit of rows or a slot range decides."""
    sizes = [entry for entry in buffer.shape if isinstance(entry, int)]
    if len(sizes) != len(buffer.shape) or buffer.dtype not in ELEMENT_BYTES:
        return 0
    return prod(sizes) * ELEMENT_BYTES[buffer.dtype] if sizes else 0


def _check_buffer(buffer: Buffer, space: Space | None, counts: dict[str, int]) -> Iterator[str]:
    if _shape_bytes(buffer) > buffer.bytes:
        yield f"buffer `{buffer.name}`: its shape needs {_shape_bytes(buffer):,} bytes, it has {buffer.bytes:,}"
    if space is None:
        if buffer.bytes:
            yield f"buffer `{buffer.name}` is in no space"
        return
    if buffer.places:
        spans = sorted(buffer.places)
        ends = [offset + size for offset, size in spans]
        if any(start < end for (start, _), end in zip(spans[1:], ends, strict=False)):
            yield f"buffer `{buffer.name}`: its places overlap"
        end = max(ends)
    else:
        reach = 0
        for axis, stride, ring in zip(buffer.index, buffer.stride, buffer.ring, strict=True):
            copies = min(ring, counts[axis]) if ring else counts[axis]
            reach += stride * (copies - 1)
            if copies > 1 and 0 < stride < buffer.bytes:
                yield f"buffer `{buffer.name}`: neighbours on `{axis}` overlap"
        end = buffer.offset + reach + buffer.bytes
    if end > space.bytes:
        yield f"buffer `{buffer.name}` ends at {end:,}, space `{space.name}` has {space.bytes:,} bytes"


def check_steps(plan: Plan) -> Iterator[str]:
    """Ops are known, kernels are listed, operands are what the op declares, events have a recorder."""
    kernels = {(row.op, row.phase, row.kernel) for row in plan.kernels}
    yield from _check_sizes(plan)
    streams = set(plan.streams.names)
    recorded = {
        parse_reference(event)[0]
        for _, program in plan.programs.named()
        for step in steps_of(program)
        for event in step.records
    }
    for name, program in plan.programs.named():
        for event in program.entry_waits:
            yield from _check_wait(name, event, recorded)
        for step in steps_of(program):
            yield from _check_step(name, step, kernels, streams)
            for event in step.waits:
                yield from _check_wait(f"{name}.{step.op}", event, recorded)


def _check_wait(where: str, event: str, recorded: set[str]) -> Iterator[str]:
    name = parse_reference(event)[0]
    if name not in recorded:
        yield f"{where}: waits for `{name}`, which no step records"


def _check_sizes(plan: Plan) -> Iterator[str]:
    """Every launch up to the largest legal one has exactly one kernel."""
    k = int(plan.model.geometry["num_experts_per_token"])
    rows = {"decode": plan.schedule.max_num_seqs * k, "prefill": plan.schedule.moe_chunk * k}
    seen: set[tuple[str, str, str]] = set()
    for row in plan.kernels:
        key = (row.op, row.phase, row.format)
        if key in seen:
            yield f"two kernels for {row.op} of {row.format} in {row.phase}"
        seen.add(key)
        if row.sizes[0] > 1 or row.sizes[1] < rows[row.phase]:
            yield f"kernel `{row.kernel}` of {row.op} takes {row.sizes} rows, {row.phase} has up to {rows[row.phase]:,}"


def _check_step(
    program: str, step: Step, kernels: set[tuple[str, str, str]], streams: set[str]
) -> Iterator[str]:
    try:
        op = find_op(step.op)
    except KeyError:
        yield f"{program}: unknown op `{step.op}`"
        return
    if (step.op, PHASE[program], step.kernel) not in kernels:
        yield f"{program}.{step.op}: kernel `{step.kernel}` is not among the plan's kernels"
    if step.stream not in streams:
        yield f"{program}.{step.op}: unknown stream `{step.stream}`"
    yield from _check_operands(program, step, op)


def _check_operands(program: str, step: Step, op: Op) -> Iterator[str]:
    declared = {
        name.rstrip("?"): (side, name.endswith("?"))
        for side, names in (
            ("reads", op.reads),
            ("writes", op.writes),
            ("weights", op.weights),
            ("addresses", op.addresses),
        )
        for name in names
    }
    touched = {*step.reads, *step.writes, *step.weights, *step.addresses}
    for name, reference in step.operands.items():
        if name not in declared:
            yield f"{program}.{step.op}: op has no operand `{name}`"
        if reference not in touched:
            yield f"{program}.{step.op}: operand `{name}` names `{reference}`, which it neither reads nor writes"
    for name, (_, optional) in declared.items():
        if not optional and name not in step.operands:
            yield f"{program}.{step.op}: operand `{name}` is missing"
    for name in step.indices:
        if name not in op.indices:
            yield f"{program}.{step.op}: op takes no index `{name}`"
