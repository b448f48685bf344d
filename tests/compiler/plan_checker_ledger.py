"""Both ledgers of a plan, line by line: what each unit takes, how many there are, and that the sums hold."""

from collections.abc import Iterator

from tests.compiler.plan_checker_batch import batch_bytes
from tests.compiler.plan_checker_model import ELEMENT, Json, up
from tests.compiler.plan_checker_places import launches
from tests.compiler.plan_checker_split import Bench, close
from tests.compiler.plan_checker_workspaces import workspace_of, workspaces

from firmtoken.runtime.kernels import CARDS

MIB, GIB = 2**20, 2**30
SPILLS = {(card.op, card.name): card.local_bytes for card in CARDS}
"""As compiled, so its card says it."""
Due = dict[str, tuple[int, int]]
"""Line -> bytes of a unit, count."""


def differ(where: str, found: Json, due: Json) -> Iterator[str]:
    for name, number in due.items():
        here = found[name]
        same = close(here, number) if isinstance(number, int | float) else here == number
        if not same or type(here) is bool:
            yield f"{where}{name} is {here}, due {number}"


def check_ledgers(bench: Bench) -> Iterator[str]:
    memory, machine = bench.plan["memory"], bench.speed.machine
    sides = (
        ("device", machine.capacity, bench.budget, _device_lines(bench)),
        ("host", machine.host, machine.host, _host_lines(bench)),
    )
    for side, capacity, budget, due in sides:
        ledger = memory[side]
        found = {row["name"]: row for row in ledger["lines"]}
        wanted = {name: row for name, row in due.items() if row[0] * row[1]}
        if len(found) != len(ledger["lines"]) or set(found) != set(wanted):
            yield f"{side} has lines {sorted(found)}, due {sorted(wanted)}"
        for name, (unit, count) in wanted.items():
            if name in found:
                numbers = {
                    "unit_bytes": unit,
                    "count": count,
                    "align": 256,
                    "bytes": up(unit * count),
                }
                yield from differ(f"{side}.{name}.", found[name], numbers)
        total = sum(row["bytes"] for row in ledger["lines"])
        sums = {"capacity": capacity, "budget": budget, "total": total, "free": budget - total}
        yield from differ(f"{side}.", ledger, sums)
        if total > budget:
            yield f"{side}: {total} bytes exceed the budget of {budget}"
    pinned = sum(
        row["bytes"]
        for row in memory["host"]["lines"]
        if row["name"] not in ("process", "restart_copy")
    )
    if pinned > machine.pinnable:
        yield f"host: {pinned} bytes are pinned, {machine.pinnable} may be"


def _device_lines(bench: Bench) -> Due:
    plan, model, machine = bench.plan, bench.model, bench.speed.machine
    experts, cache, slot = plan["experts"], plan["kv_cache"], bench.speed.slot_bytes
    lines: Due = {
        "weights": (model.weight_bytes, 1),
        "states": (model.state_bytes, cache["state_slots"]),
        "activations": (_reach(plan), 1),
        "inputs": (_inputs(plan), 1),
        "tables": (_tables(bench) if bench.speed.offloaded else 0, 1),
        "kv_pages": (bench.page_bytes, bench.pages(cache["tokens"])),
        "experts.cache": (slot, experts["slots"]),
        "experts.staging": (slot, experts["staging_slots"]),
        "experts.overflow": (slot, experts["overflow_slots"]),
    }
    lines |= {f"workspace.{name}": (size, 1) for name, size in workspaces(bench).items()}
    if bench.speed.offloaded:
        chunk = plan["schedule"]["moe_chunk"]
        rows = up(chunk * model.hidden * ELEMENT[model.activation]) // chunk
        lines["parked_hidden"] = (rows, up(plan["schedule"]["prefill_span"], chunk))
    if machine.kind == "cuda":
        lines["cuda_context"] = (bench.asked["hardware"]["gpu"]["context_overhead"], 1)
        lines["graphs"] = (4096, _graph_launches(bench))
        lines["margin"] = (128 * MIB, 1)
    return lines


def _host_lines(bench: Bench) -> Due:
    model, slot = bench.model, bench.speed.slot_bytes
    lines: Due = {
        "pinned_io": (host_input(bench.plan, bench.asked), 2),
        "process": (bench.host_lines["process"], 1),
        "snapshots": (model.state_bytes, snapshots(bench)),
    }
    if bench.speed.offloaded:
        return {**lines, "bank": (slot, model.total)}
    hardware = bench.asked["hardware"]
    banks = hardware["host"]["banks"]
    shared = banks == "shared" or (banks == "auto" and hardware["software"]["os"] != "wsl")
    held = sum(up(unit * count) for unit, count in lines.values())
    fits = up(slot * model.total) <= bench.speed.machine.host - held
    return {**lines, "restart_copy": (slot, model.total if shared and fits else 0)}


def snapshots(bench: Bench) -> int:
    """8 for each request, at least 16, at most an eighth of what the host has left (D4)."""
    if bench.plan["kv_cache"]["type"] != "hybrid_radix":
        return 0
    machine, bank = bench.speed.machine, 0
    if bench.speed.offloaded:
        bank = up(bench.model.total * bench.speed.slot_bytes)
    pinned = bank + bench.host_lines["pinned_io"]
    left = min(machine.host - pinned - bench.host_lines["process"], machine.pinnable - pinned)
    return min(max(16, 8 * bench.requests), left // 8 // bench.model.state_bytes)


def graph_sizes(requests: int) -> list[int]:
    return sorted({requests, *(1 << n for n in range(9) if 1 << n < requests)})


def _graph_launches(bench: Bench) -> int:
    """Of all graphs together: a decode step for each batch size, one tile of prefill for each length."""
    if not bench.speed.captured:
        return 0
    prefill = launches(bench.plan, bench.model, "prefill")
    decode = bench.speed.launches * len(graph_sizes(bench.requests))
    return decode + prefill * len(bench.speed.graph_rows)


def _reach(plan: Json) -> int:
    arena = [row for row in plan["buffers"] if row["space"] == "activations"]
    return max(int(row["offset"] + row["bytes"]) for row in arena)


def _inputs(plan: Json) -> int:
    return sum(int(row["bytes"]) for row in plan["buffers"] if row["space"] == "inputs")


def host_input(plan: Json, asked: Json) -> int:
    """A decode step's batch and a span's, which may be open at the same time."""
    return sum(up(size) for size in batch_bytes(plan, asked).values())


def _tables(bench: Bench) -> int:
    """Place and recency of each expert, what was found: twice where a ring is ahead, once elsewhere."""
    model, extend = bench.model, 2 if bench.layout == "waves" else 1
    place, recency = up(model.experts * 4), up(model.experts * 8)
    miss = up((1 + 2 * model.experts) * 4)
    return model.layers * (place + recency) + (2 + extend) * (place + miss) + miss


def check_workspaces(bench: Bench) -> Iterator[str]:
    """Each kernel names the workspace that it shares."""
    sizes = workspaces(bench)
    for row in bench.plan["kernels"]:
        name = workspace_of(row)
        spill = SPILLS[row["op"], row["kernel"]]
        due = {"workspace": name, "workspace_bytes": sizes.get(name, 0), "local_bytes": spill}
        yield from differ(f"kernel {row['op']}.{row['phase']}: ", row, due)
