"""Every number of a plan once more, from its JSON and from what was asked, by the definitions (D2 to D8, D16, D18).

Shares no line with the compiler. Taken from the plan as they are, since no definition yields them: the formats of slots
and keys, which kernels there are, which buffers a program has (their sizes, places and lifetimes are checked), and the
order of steps. Sentences (`because`, warnings, advice) are not read.
"""

from collections.abc import Iterator
from math import prod

from tests.compiler.plan_checker_constants import check_constants
from tests.compiler.plan_checker_conversation import check_conversation
from tests.compiler.plan_checker_frontier import check_frontier, settled
from tests.compiler.plan_checker_ledger import (
    GIB,
    check_ledgers,
    check_workspaces,
    differ,
    graph_sizes,
    host_input,
    snapshots,
)
from tests.compiler.plan_checker_model import ELEMENT, Json, Model, folds_shared, read_model, up
from tests.compiler.plan_checker_places import check_places, launches, walk
from tests.compiler.plan_checker_speed import Speed, read_machine
from tests.compiler.plan_checker_split import Bench, deal


def differences(plan: Json, asked: Json) -> list[str]:
    """What is wrong in `plan`, in words; `asked` is the resolved profile as data."""
    try:
        bench = bench_of(plan, asked)
        model = bench.model
        checks = (
            _check_facts(plan, asked, model),
            _check_cache(bench),
            _check_experts(bench),
            check_ledgers(bench),
            check_workspaces(bench),
            check_places(plan, asked, model),
            _check_sizes(bench),
            _check_fold(bench),
            check_constants(bench),
            _check_schedule(bench),
            _check_admission(plan, asked),
            _check_estimates(bench),
            _check_context(bench),
            check_frontier(bench),
        )
        return list(dict.fromkeys(found for check in checks for found in check))
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        return [f"cannot be read: {error!r}"]


def bench_of(plan: Json, asked: Json) -> Bench:
    """A plan and its wish with all that is derived from them."""
    model = read_model(asked["model"], plan["device"]["kind"])
    speed = Speed(
        machine=read_machine(asked["hardware"]),
        model=model,
        captured=plan["device"]["kind"] == "cuda" and asked["graphs"] == "auto",
        overlaps=asked["streams"]["layout"] == "auto",
        slot_bytes=plan["experts"]["slot_bytes"],
        kv_bytes=model.kv_elements * ELEMENT[plan["kv_cache"]["dtype"]],
        launches=launches(plan, model, "decode"),
        offloaded=plan["experts"]["placement"] == "offload",
        slots=plan["experts"]["slots"],
        span=plan["schedule"]["prefill_span"],
        tile=plan["schedule"]["mixer_tile"],
        chunk=plan["schedule"]["moe_chunk"],
        waves=plan["programs"]["prefill"]["bounds"].get("waves", 1),
    )
    host_lines = {
        "process": GIB if plan["device"]["kind"] == "cpu" else 3 * GIB,
        "pinned_io": up(2 * host_input(plan, asked)),
    }
    bench = Bench(plan=plan, asked=asked, model=model, speed=speed, host_lines=host_lines)
    return settled(bench)


def _check_facts(plan: Json, asked: Json, model: Model) -> Iterator[str]:
    """The plan repeats the profile's hardware and geometry."""
    found, wanted = plan["hardware"], asked["hardware"]
    yield from differ("hardware.", found, {name: wanted[name] for name in ("gpu", "cpu", "link")})
    host = {name: number for name, number in wanted["host"].items() if name != "threads"}
    yield from differ("hardware.host.", found["host"], host)
    if plan["device"]["rank"] != 0:
        yield "device.rank is not 0: there is one plan"
    formats = {name: form for name, form in asked["model"]["quantization"].items() if form}
    said = {
        "geometry": _flat(asked["model"]["geometry"]),
        "quantization": formats,
        "source": {name: str(value) for name, value in _flat(asked["model"]["source"]).items()},
    }
    yield from differ("model.", plan["model"], said)
    if tuple(plan["model"]["layer_kinds"]) != model.kinds:
        yield f"model.layer_kinds is {plan['model']['layer_kinds']}"


def _flat(data: Json) -> Json:
    """What is inside another mapping is spelled with a dot, and what is null is not there."""
    flat: dict[str, object] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": each for inner, each in _flat(value).items()}
        elif value is not None:
            flat[name] = value
    return flat


def _check_cache(bench: Bench) -> Iterator[str]:
    """D2 and D4."""
    plan, asked, model = bench.plan, bench.asked, bench.model
    cache, requests = plan["kv_cache"], bench.requests
    page = asked["cache"]["page_size"]
    chosen = bench.chosen
    due = {
        "page_size": (64 if model.linear else 16) if page == "auto" else page,
        "pages": bench.pages(cache["tokens"]),
        "tokens": chosen.pool if chosen else 0,
        "bytes_per_token": model.kv_elements * ELEMENT[cache["dtype"]],
        "state_slots": 2 * requests + 1 if model.linear else 0,
        "state_bytes_per_sequence": model.state_bytes,
        "snapshot_slots": snapshots(bench),
    }
    yield from differ("kv_cache.", cache, due)
    declared = asked["model"]["quantization"]["kv_cache"] or "bf16"
    dtype = declared if asked["cache"]["kv_dtype"] == "auto" else asked["cache"]["kv_dtype"]
    if cache["dtype"] != ("fp32" if plan["device"]["kind"] == "cpu" else dtype):
        yield f"kv_cache.dtype is {cache['dtype']}"


def _check_experts(bench: Bench) -> Iterator[str]:
    """D8."""
    experts, model = bench.plan["experts"], bench.model
    chosen = bench.chosen
    if chosen is None:
        yield "no context fits, and yet there is a plan"
        return
    offload = chosen.placement == "offload"
    width, hidden = model.expert_elements
    elements = 3 * width * hidden
    packed = experts["format"] == "nvfp4"
    slot = elements // 2 + elements // 16 + 12 if packed else elements * ELEMENT[experts["format"]]
    due = {
        "placement": chosen.placement,
        "slots": chosen.slots,
        "slots_per_layer": deal(chosen.slots, model.layers),
        "staging_slots": chosen.staging,
        "overflow_slots": bench.overflow() if offload else 0,
        "slot_bytes": up(slot),
        "per_layer": model.experts,
        "total": model.total,
        "resident_fraction": chosen.slots / model.total,
        "ring": {"resident": "none", "offload": "whole", "waves": "waves"}[chosen.layout],
    }
    yield from differ("experts.", experts, due)
    offset = 0
    for part in experts["slot_parts"]:
        size = prod(part["shape"]) * ELEMENT[part["dtype"]]
        if (part["offset"], part["bytes"]) != (offset, size):
            yield f"slot part {part['name']} is at {part['offset']} with {part['bytes']} bytes, due {offset}, {size}"
        offset += size
    if offset != slot:
        yield f"slot parts take {offset} bytes, due {slot}"


def _check_sizes(bench: Bench) -> Iterator[str]:
    """Loops, graphs and kernels (D5, D6)."""
    plan, asked, model = bench.plan, bench.asked, bench.model
    schedule = plan["schedule"]
    captured = plan["device"]["kind"] == "cuda" and asked["graphs"] == "auto"
    span, chunk, tile = schedule["prefill_span"], schedule["moe_chunk"], schedule["mixer_tile"]
    for name, program in plan["programs"].items():
        if program is None:
            continue
        whole = {"layers": model.layers, "chunks": 1, "tiles": 1}
        waves = {"waves": bench.waves("waves", plan["experts"]["slots"])}
        if name in ("prefill", "extend") and plan["experts"]["ring"] == "waves":
            whole |= waves
        prefill = {**whole, "chunks": -(-span // chunk), "tiles": -(-chunk // tile)}
        if plan["device"]["kind"] == "cuda" and plan["experts"]["ring"] != "waves":
            blocks = next((blocks for blocks in (4, 2) if model.hidden % (64 * blocks) == 0), 1)
            prefill |= {"columns": blocks} if blocks > 1 else {}
        due = prefill if name == "prefill" else whole
        if program["captured"] != (name == "decode" and captured):
            yield f"programs.{name}.captured is {program['captured']}"
        if program["bounds"] != due:
            yield f"programs.{name}.bounds is {program['bounds']}, due {due}"
        sizes = schedule["graph_batch_sizes"] if name == "decode" else []
        if program["sizes"] != sizes:
            yield f"programs.{name}.sizes is {program['sizes']}, due {sizes}"
    for row in plan["kernels"]:
        most = (chunk if row["phase"] == "prefill" else schedule["max_num_seqs"]) * model.routed
        name = f"kernel {row['op']}.{row['phase']}"
        if row["sizes"][0] != 1 or row["sizes"][1] < most:
            yield f"{name} takes {row['sizes']} rows, due 1 to {most}"


def _check_fold(bench: Bench) -> Iterator[str]:
    """A launch of the shared expert in a decode step, unless routed experts' launches are to hold it (D13)."""
    apart = bench.asked["model"]["family"] == "qwen3_5_moe"
    if bench.plan["experts"]["placement"] == "resident":
        apart &= not folds_shared(bench.asked)
    steps = walk(bench.plan["programs"]["decode"], bench.model.kinds, 1, 1)
    if any(step.get("op") == "shared_expert" for step in steps) != apart:
        yield f"decode has {'no' if apart else 'a'} launch of the shared expert"


def _check_schedule(bench: Bench) -> Iterator[str]:
    """D6, D7, D18."""
    plan, speed, schedule = bench.plan, bench.speed, bench.plan["schedule"]
    tile, chunk = _launch_sizes(bench)
    context, chosen = plan["context"]["effective"], bench.chosen
    step = speed.decode_s(bench.requests, context)
    deepest = max(0, context - schedule["moe_chunk"])
    unit = speed.pass_s(schedule["moe_chunk"], deepest) / speed.model.layers
    due = {
        "max_num_seqs": bench.requests,
        "mixer_tile": tile,
        "moe_chunk": chunk,
        "prefill_span": chosen.span if chosen else 0,
        "order": "layer" if speed.offloaded else "chunk",
        "decode_every_units": max(1, int((0.5 - step) / unit)),
        "graph_batch_sizes": graph_sizes(bench.requests),
        "prefill_graph_rows": speed.graph_rows,
    }
    yield from differ("schedule.", schedule, due)
    factor, asked = 10 if speed.machine.kind == "cpu" else 1, bench.asked["schedule"]
    deadline = asked["step_deadline"]
    deadlines = {
        "decode_s": factor * max(2.0, 20 * step) if deadline == "auto" else deadline,
        "prefill_layer_s": factor * max(5.0, 20 * unit) if deadline == "auto" else deadline,
        "start_s": 120.0,
    }
    yield from differ("schedule.deadlines.", schedule["deadlines"], deadlines)
    for warmth, hits in (("cold", speed.fraction), ("warm", speed.hit_rate)):
        found = schedule["on_demand_below"][warmth]
        below = asked["on_demand_below"]
        due_below = _crossing(speed, hits, tile) if below == "auto" else below
        if found != due_below:
            yield f"schedule.on_demand_below.{warmth} is {found}, due {due_below}"


def _crossing(speed: Speed, hits: float, most: int) -> int:
    """The first length that streams sooner than it fetches on demand, at most one tile."""
    if not speed.missing:
        return 0

    def streams(tokens: int) -> bool:
        return speed.on_demand_s(tokens, hits) > speed.prefill_s(tokens)

    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if streams(middle) else (middle + 1, high)
    return low


def _launch_sizes(bench: Bench) -> tuple[int, int]:
    """Mixer tile and MoE chunk: by the device, or as asked, and never longer than a prompt can be (D6)."""
    machine, asked = bench.speed.machine, bench.asked["schedule"]
    sizes = (4096, 8192) if machine.capacity > 48 * GIB else (2048, 8192)
    if machine.capacity <= 14 * GIB:
        sizes = (2048, 2048)
    if machine.kind == "cpu":
        sizes = (512, 512)
    elif bench.asked["hardware"]["gpu"]["compute_capability"] == "8.6":
        sizes = (2048, 2048)  # prototype.md 3: larger ones died there
    if asked["prefill_chunk"] != "auto":
        return min(sizes[0], asked["prefill_chunk"]), asked["prefill_chunk"]
    longest = bench.asked["model"]["geometry"]["max_position_embeddings"]
    context, span = bench.asked["serving"]["context"], asked["prefill_span"]
    if isinstance(context, int):
        longest = min(longest, context)
    if span != "auto":
        longest = min(longest, span)
    return min(sizes[0], up(longest, 64)), min(sizes[1], up(longest, 64))


def _check_admission(plan: Json, asked: Json) -> Iterator[str]:
    """D3."""
    context = plan["context"]["effective"]
    due = {
        "max_prompt_tokens": context - 1,
        "output_reserve": 1024,
        "default_output": asked["serving"]["output"],
        "queue": asked["serving"]["queue"],
        "queue_tokens": 16 * context,
        "max_preemptions": 2,
        "max_passes": 4,
    }
    yield from differ("admission.", plan["admission"], due)


def _check_estimates(bench: Bench) -> Iterator[str]:
    speed, estimates = bench.speed, bench.plan["estimates"]
    due = {
        "decode_tokens_per_s": 1 / speed.decode_s(1, 8_192),
        "prefill_tokens_per_s": 8_192 / speed.prefill_s(8_192),
        "ttft_floor_s": speed.first_s(1),
        "hit_rate": speed.hit_rate,
        "bank_stream_s": speed.stream_s,
    }
    yield from differ("estimates.", estimates, due)
    yield from check_conversation(bench)
    moved = {"device": speed.decode_bytes(1, 8_192), "link": speed.link_bytes(1)}
    for name, number in moved.items():
        if abs(estimates["bytes_per_token"][name] - number) > 0.501:
            yield f"estimates.bytes_per_token.{name} is {estimates['bytes_per_token'][name]}, due {number}"


def _check_context(bench: Bench) -> Iterator[str]:
    """D2 and D16."""
    asked, chosen = bench.asked["serving"]["context"], bench.chosen
    longest = bench.asked["model"]["geometry"]["max_position_embeddings"]
    context = chosen.context if chosen else 0
    if isinstance(asked, int) and asked <= bench.most:
        limited = "asked"
    elif context == bench.most:
        limited = "model" if bench.most == longest else "asked"
    else:
        open_ = all(bench.host_has_room(placement) for placement in bench.placements)
        limited = "device_memory" if open_ else "host_memory"
    due = {
        "effective": context,
        "requested": str(asked),
        "model_max": longest,
        "limited_by": limited,
    }
    yield from differ("context.", bench.plan["context"], due)
