"""Places of a plan, by a walk of its JSON: what a value takes, that it fits its space, that nothing is overwritten."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod

from tests.compiler.plan_checker_batch import batch_bytes
from tests.compiler.plan_checker_model import ELEMENT, PLACE, Json, Model, up
from tests.compiler.plan_checker_workspaces import NO_SPACE

Value = tuple[str, tuple[int, ...]]
Span = tuple[str, int, int]
"""Space, first byte, end."""
REFERENCE = re.compile(r"([a-z_0-9.]+)(?:\[(.*)\])?")
PINNED = {"bank": "bank", "snapshots": "snaps"}
"""Host spaces that copies to a GPU read or write, with their values: one a layer."""
INDEX = re.compile(r"\(?([a-z]|\d+)([+-]\d+)?\)?(?:%(\d+))?")


def check_places(plan: Json, asked: Json, model: Model) -> Iterator[str]:
    """Everything about bytes below the level of ledger lines."""
    yield from _check_spaces(plan, _due_bytes(plan, model))
    yield from _check_weights(plan, model)
    yield from _check_buffers(plan, asked, model)
    yield from _check_apart(plan, model)
    for name, program in plan["programs"].items():
        if program is not None:
            yield from _check_run(plan, model, name, program)
    yield from _check_arena(plan, model)


def launches(plan: Json, model: Model, program: str) -> int:
    """Launches of one decode step, or of a prompt that is one tile."""
    return sum("op" in step for step in walk(plan["programs"][program], model.kinds, 1, 1))


# The walk: templates to a flat list (D5).


def walk(program: Json, kinds: Sequence[str], chunks: int, tiles: int) -> Iterator[Json]:
    """Steps in order with bound `reads` and `writes`, and yields."""
    bounds = {**program["bounds"], "layers": len(kinds), "chunks": chunks, "tiles": tiles}
    return _inside(program["body"], {}, program["blocks"], kinds, bounds)


def _inside(
    body: Sequence[Json],
    at: dict[str, int],
    blocks: Json,
    kinds: Sequence[str],
    bounds: Mapping[str, int],
) -> Iterator[Json]:
    for item in body:
        if "op" in item:
            yield {**item, **{side: bound(item[side], at) for side in ("reads", "writes")}}
        elif "yield" in item:
            yield item
        elif "loop" in item:
            for value in range(bounds[item["count"]]):
                inner = {**at, item["loop"]: value}
                yield from _inside(item["body"], inner, blocks, kinds, bounds)
        elif "when" not in item or _holds(item["when"], at, kinds, bounds):
            name = kinds[at["l"]] + item["suffix"] if "block_of" in item else item.get("block")
            inner_body = item["body"] if name is None else blocks[name]
            yield from _inside(inner_body, at, blocks, kinds, bounds)


def _holds(
    condition: str, at: Mapping[str, int], kinds: Sequence[str], bounds: Mapping[str, int]
) -> bool:
    left, sign, right = re.split(r"(<|==)", condition)
    if left == "kind":
        return kinds[at["l"]] == right
    limit = bounds[right] if right in bounds else index(right, at)
    return index(left, at) < limit if sign == "<" else index(left, at) == limit


def index(text: str, at: Mapping[str, int]) -> int:
    """`l`, `3`, `l+1`, `(l+1)%2`."""
    match = INDEX.fullmatch(text)
    assert match is not None, text
    base, plus, ring = match.groups()
    value = (int(base) if base.isdigit() else at[base]) + int(plus or 0)
    return value % int(ring) if ring else value


def bound(texts: Sequence[str], at: Mapping[str, int]) -> list[Value]:
    """References with their indices evaluated."""
    found = []
    for text in texts:
        match = REFERENCE.fullmatch(text)
        assert match is not None, text
        name, inner = match.groups()
        parts = inner.split(",") if inner else []
        found.append((name, tuple(index(part, at) for part in parts)))
    return found


def span_of(buffer: Json, at: Sequence[int], kinds: Sequence[str]) -> Span:
    """Where one value lies."""
    start, size = buffer["offset"], buffer["bytes"]
    for axis, stride, ring, number in zip(
        buffer["index"], buffer["stride"], buffer["ring"], at, strict=True
    ):
        ordinal = kinds[:number].count(axis) if axis in ("linear", "full") else number
        if buffer["places"]:
            start, size = buffer["places"][ordinal]
        else:
            start += stride * (ordinal % ring if ring else ordinal)
    return buffer["space"], start, start + size


# Static: sizes, and values of one space beside each other.


def _check_spaces(plan: Json, due_bytes: Mapping[str, int]) -> Iterator[str]:
    ends = {"device": 0, "host": 0}
    for space in plan["spaces"]:
        lines = {row["name"]: row["bytes"] for row in plan["memory"][space["memory"]]["lines"]}
        if lines.get(space["line"]) != space["bytes"]:
            yield f"space {space['name']} has {space['bytes']} bytes, its line {lines.get(space['line'])}"
        due = ends["device"] if space["memory"] == "device" else 0
        if space["offset"] != due:
            yield f"space {space['name']} begins at {space['offset']}, the one before ends at {due}"
        ends[space["memory"]] += space["bytes"]
        piece = 0
        if plan["device"]["kind"] == "cuda" and space["name"] in PINNED:
            # Whole layers and whole pages of 4,096 bytes, at most 64 GiB (hardware.md H-64).
            unit = due_bytes[PINNED[space["name"]]] * 16
            piece = max(unit, 2**36 // unit * unit)
        if space["pinned_piece"] != piece:
            yield f"space {space['name']} is pinned by {space['pinned_piece']} bytes, due {piece}"
    named = [space["line"] for space in plan["spaces"]]
    if len(set(named)) != len(named):
        yield "two spaces have one line"
    held = {*named, "cuda_context", "graphs", "margin", "pinned_io", "process"}
    held |= {f"workspace.{name}" for name in NO_SPACE}
    for side in ("device", "host"):
        for line in plan["memory"][side]["lines"]:
            if line["name"] not in held:
                yield f"line {line['name']} holds values and is no space"


def _check_weights(plan: Json, model: Model) -> Iterator[str]:
    offset = 0
    if {row["name"] for row in plan["weights"]} != set(model.tensors):
        yield f"weights are {[row['name'] for row in plan['weights']]}, due are {list(model.tensors)}"
        return
    for row in plan["weights"]:
        due = model.tensors[row["name"]]
        stride = up(due.bytes) if due.axis else 0
        found = (row["axis"], row["bytes"], row["stride"], row["offset"], tuple(row["shape"]))
        if found != (due.axis, due.bytes, stride, offset, due.shape):
            yield f"weight {row['name']} is {found}, due {due} at {offset}"
        if row["add"] != due.add:
            yield f"weight {row['name']}: {row['add']} is added, due {due.add}"
        parts = tuple((part["rows"], part["format"]) for part in row["parts"])
        if (parts, row["dtype"]) != (due.parts, due.parts[0][1]):
            yield f"weight {row['name']} has {parts} in {row['dtype']}, due {due.parts}"
        offset += due.copies * up(due.bytes)


def _check_buffers(plan: Json, asked: Json, model: Model) -> Iterator[str]:
    due = _due_bytes(plan, model) | {n: up(size) for n, size in batch_bytes(plan, asked).items()}
    for row in plan["buffers"]:
        name, size = row["name"], row["bytes"]
        if name not in due:
            yield f"buffer {name} is unknown"
            continue
        if size != due[name]:
            yield f"buffer {name} has {size} bytes, due {due[name]}"
        # States of an odd width begin where they begin.
        if row["offset"] % (4 if row["space"] == "states" else PLACE):
            yield f"buffer {name} begins at {row['offset']}"
        # Two layers or waves at once: one computes while the next is found and fetched (D7, D8). Waves of all layers
        # take the same two places.
        turned = row["index"][-1:] if _takes_turns(row) else []
        strides = [
            size if [axis] == turned or (not turned and axis != "owner" and name != "cache") else 0
            for axis in row["index"]
        ]
        rings = [2 if [axis] == turned else 0 for axis in row["index"]]
        if row["stride"] != strides or row["ring"] != rings:
            yield f"buffer {name}: stride {row['stride']}, ring {row['ring']}, due {strides}, {rings}"
        yield from _check_shape(row, model, plan)
    ranges = next(row["places"] for row in plan["buffers"] if row["name"] == "cache")
    slot, end = plan["experts"]["slot_bytes"], 0
    for place, slots in zip(ranges, plan["experts"]["slots_per_layer"], strict=True):
        if place != [end, slots * slot]:
            yield f"a layer's slots lie at {place}, due {[end, slots * slot]}"
        end += slots * slot


def _takes_turns(row: Json) -> bool:
    names = ("staged", "prefill.map", "prefill.miss")
    return row["name"] in names or (row["name"] in ("extend.map", "extend.miss") and row["index"])


def _check_shape(row: Json, model: Model, plan: Json) -> Iterator[str]:
    numbers = [size for size in row["shape"] if isinstance(size, int)]
    if numbers == row["shape"] != []:
        if up(prod(numbers) * ELEMENT[row["dtype"]]) != up(row["bytes"]):
            yield f"buffer {row['name']}: {row['shape']} of {row['dtype']} are not its bytes"
    elif row["shape"] and prod(numbers) != _width(row["name"], model, plan):
        yield f"buffer {row['name']}: rows of {prod(numbers)} elements"


def _width(name: str, model: Model, plan: Json) -> int:
    """Elements of a row: of a chunk's down projection those of one block of columns (D6)."""
    program, value = name.split(".")
    blocks = plan["programs"][program]["bounds"].get("columns", 1) if value == "rows" else 1
    return model.widths[value][1] // blocks


def _due_bytes(plan: Json, model: Model) -> dict[str, int]:
    """Bytes of one value of each name: rows at the largest legal launch x elements of a row."""
    cache, experts, schedule = plan["kv_cache"], plan["experts"], plan["schedule"]
    slot, count = experts["slot_bytes"], model.experts
    conv = model.conv_elements * ELEMENT[model.activation]
    due = {
        "cache": experts["slots_per_layer"][0] * slot,
        "staged": experts["staging_slots"] // 2 * slot,
        "overflow": experts["overflow_slots"] * slot,
        "bank": count * slot,
        "restart_copy": count * slot,
        "kv": cache["pages"]
        * cache["page_size"]
        * (model.kv_elements // max(1, model.layers - model.linear))
        * ELEMENT[cache["dtype"]],
        "conv_state": cache["state_slots"] * conv,
        "recurrent_state": cache["state_slots"] * model.recurrent_elements * 4,
        "snaps": cache["snapshot_slots"] * (conv + model.recurrent_elements * 4),
        "table": up(count * 4),
        "lru": up(count * 8),
        "prefill.map": up(count * 4),
        "extend.map": up(count * 4),
        # How many are missing, then pairs of an expert and its slot.
        **{f"{name}.miss": up((1 + 2 * count) * 4) for name in ("decode", "prefill", "extend")},
    }
    for name, (tokens, tile) in launch_rows(schedule).items():
        rows = {
            "tokens": tokens,
            "tile": tile,
            "pairs": tokens * model.routed,
            "sequences": schedule["max_num_seqs"],
        }
        for value, (unit, _, form) in model.widths.items():
            width = _width(f"{name}.{value}", model, plan)
            due[f"{name}.{value}"] = up(rows[unit] * width * ELEMENT[form])
    return due


def launch_rows(schedule: Json) -> dict[str, tuple[int, int]]:
    """Tokens and mixer rows of the largest launch of each program (D6)."""
    seqs, tile = schedule["max_num_seqs"], schedule["mixer_tile"]
    return {
        "decode": (seqs, seqs),
        "prefill": (schedule["moe_chunk"], tile),
        "extend": (tile, tile),
    }


def instances(buffer: Json, plan: Json, model: Model) -> Iterator[tuple[Value, Span]]:
    """Every value of a buffer with bytes of its own."""
    chunks = plan["programs"]["prefill"]["bounds"]["chunks"]
    layers = range(model.layers)
    axes = {
        "layer": list(layers),
        "linear": [layer for layer in layers if model.kinds[layer] == "linear"],
        "full": [layer for layer in layers if model.kinds[layer] == "full"],
        "chunk": list(range(chunks)),
        "wave": list(range(plan["programs"]["prefill"]["bounds"].get("waves", 1))),
        "owner": [0],
    }
    ranges = [
        axes[axis][:ring] if ring else axes[axis]
        for axis, ring in zip(buffer["index"], buffer["ring"], strict=True)
    ]
    if "wave" in buffer["index"]:
        ranges[0] = [0]  # the waves of every layer take the same places
    for at in product(*ranges):
        yield (buffer["name"], at), span_of(buffer, at, model.kinds)


def _check_apart(plan: Json, model: Model) -> Iterator[str]:
    """In every space but the arena of activations all values have bytes of their own, inside the space."""
    sizes = {space["name"]: space["bytes"] for space in plan["spaces"]}
    found: dict[str, list[tuple[int, int, Value]]] = {}
    for buffer in plan["buffers"]:
        for value, (space, start, end) in instances(buffer, plan, model):
            if not 0 <= start < end <= sizes.get(space, 0):
                yield f"{value} lies at {start} to {end} of {space}, which has {sizes.get(space)} bytes"
            if space != "activations":
                found.setdefault(space, []).append((start, end, value))
    for space, rows in found.items():
        for (_, end, one), (start, _, other) in pairwise(sorted(rows)):
            if start < end:
                yield f"{one} and {other} overlap in {space}"


# Dynamic: what a run finds where it reads.


def _check_run(plan: Json, model: Model, name: str, program: Json) -> Iterator[str]:
    """The last writer of all bytes of a value is its own; at a yield a decode step may use the whole arena."""
    buffers = {row["name"]: row for row in plan["buffers"]}
    in_place = {
        (row["op"], row["kernel"]): [tuple(pair) for pair in row["in_place"]]
        for row in plan["kernels"]
    }
    held: dict[str, dict[Value, Span]] = {row["space"]: {} for row in plan["buffers"]}
    for step in _run(program, model):
        if "yield" in step:
            held["activations"] = {}
            continue
        spans = {
            value: span_of(buffers[value[0]], value[1], model.kinds)
            for value in (*step["reads"], *step["writes"])
        }
        passing = {value for value in spans if buffers[value[0]]["kind"] in ("activation", "view")}
        for value in step["reads"]:
            if value in passing and value not in held[spans[value][0]]:
                yield f"{name}: {step['op']} reads {value}, which is not there any more"
        yield from _check_inputs(name, step, spans, in_place[step["op"], step["kernel"]])
        for value in passing.intersection(step["writes"]):
            space = spans[value][0]
            rest = {v: span for v, span in held[space].items() if not _overlap(span, spans[value])}
            held[space] = {**rest, value: spans[value]}


def _check_inputs(
    name: str, step: Json, spans: Mapping[Value, Span], in_place: Sequence[tuple[str, ...]]
) -> Iterator[str]:
    """No output shares bytes with another input, unless the kernel allows the pair."""
    for read, written in product(step["reads"], step["writes"]):
        if read != written and _overlap(spans[read], spans[written]):
            operands = {text.split("[")[0]: operand for operand, text in step["operands"].items()}
            if (operands.get(read[0]), operands.get(written[0])) not in in_place:
                yield f"{name}: {step['op']} writes {written} over its own input {read}"


def _run(program: Json, model: Model) -> Iterator[Json]:
    bounds = program["bounds"]
    return walk(program, model.kinds, min(2, bounds["chunks"]), min(2, bounds["tiles"]))


def _overlap(one: Span, other: Span) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]


def _check_arena(plan: Json, model: Model) -> Iterator[str]:
    """Activations take what the buffers reach, and at least what lives at once."""
    line = {row["name"]: row for row in plan["memory"]["device"]["lines"]}["activations"]
    buffers = {row["name"]: row for row in plan["buffers"] if row["space"] == "activations"}
    reach = max(row["offset"] + row["bytes"] for row in buffers.values())
    if line["bytes"] != reach:
        yield f"line activations has {line['bytes']} bytes, its buffers reach {reach}"
    for name, program in plan["programs"].items():
        if program is None:
            continue
        alive: set[str] = set()
        most = 0
        for step in reversed([step for step in _run(program, model) if "op" in step]):
            reads = {value for value, _ in step["reads"] if value in buffers}
            writes = {value for value, _ in step["writes"] if value in buffers}
            most = max(most, sum(buffers[value]["bytes"] for value in alive | reads | writes))
            alive = (alive - writes) | reads
        if line["bytes"] < most:
            yield f"{name}: {most} bytes live at once, line activations has {line['bytes']}"
