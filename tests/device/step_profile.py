"""Parts of `whole_steps.py`: where a decode step's time goes, how it grows with depth, whether it has races."""

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.batches import SPAN, Batches, Cut
from firmtoken.runtime.engine.device_batches import DeviceBatches
from firmtoken.runtime.engine.messages import Sampling
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.work import Decode
from firmtoken.runtime.kernels.device_rows import DeviceRows

STATES = ("conv_state", "recurrent_state")
BESIDE = ("store_word",)
"""Kernels that run beside the others of a step."""
Replay = Callable[[], None]


def fill_cache(plan: Plan, interpreter: Interpreter) -> None:
    """Keys and values that are small numbers in any format, so that a step may stand at any depth."""
    kinds = plan.model.layer_kinds
    for layer in (layer for layer, kind in enumerate(kinds) if kind == "full"):
        pages = interpreter.views.tensor(Value("kv", (layer, 1)))
        pages.view(torch.uint8).random_(0, 60)


def stand_at(
    plan: Plan, batches: DeviceBatches, size: int, depth: int, sampling: Sampling
) -> DeviceRows:
    """The decode batch of `size` sequences that have `depth` tokens each; their pages lie one after the other."""
    torch.cuda.synchronize()  # what was sent before has been read
    cache, region = plan.kv_cache, batches._decode
    host = region.host
    pages = depth // cache.page_size + 1
    for row in range(size):
        table = tuple(1 + (row * pages + page) % (cache.pages - 1) for page in range(pages))
        region.write_table(row, table)
        host["token_slots"][row] = table[-1] * cache.page_size + depth % cache.page_size
        host["sequences"][row] = row
        host["live"][row], host["shadow"][row] = 1 + 2 * row, 2 + 2 * row
        host["token_ids"][row] = 1000 + row
    host["positions"][:size] = host["starts"][:size] = depth
    host["boundary"][:size] = 0
    host["num_rows"][0] = size
    for name in ("temperature", "top_p", "top_k", "min_p", "seed"):
        host[name][:size] = getattr(sampling, name)
    host["position"][:size] = depth + 1
    region.send()
    return batches._rows_of_decode(size)


def step_of(rows: DeviceRows, size: int) -> tuple[Cut, Batches]:
    return Cut(chunks=((size,),), num_seqs=size), {SPAN: rows, ("tokens", 0): rows}


def captured(interpreter: Interpreter, batches: DeviceBatches, size: int) -> Replay:
    """A graph of a step of this size; its kernels are compiled by a step of padded rows first."""
    cut, rows = step_of(batches.decode(Decode(sequences=(), size=size)), size)
    if ("decode", cut) not in interpreter._graphs._captured:
        interpreter.run("decode", cut, rows)
        torch.cuda.synchronize()
        interpreter.capture("decode", cut, rows)
    return interpreter._graphs._captured["decode", cut].replay


def gpu_seconds(replay: Replay, count: int = 30) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    begun.record()
    for _ in range(count):
        replay()
    ended.record()
    ended.synchronize()
    return begun.elapsed_time(ended) / 1e3 / count


def tuned(
    cards: Sequence[KernelCard], changes: Mapping[str, Mapping[str, int]]
) -> tuple[KernelCard, ...]:
    """Cards of a GPU's decode kernels with other constants, where they have such; `*` means every op."""

    def change(card: KernelCard) -> KernelCard:
        wanted = {**changes.get("*", {}), **changes.get(card.op, {})}
        known = {*dict(card.constants), *dict(card.computed)}
        mine = {name: number for name, number in wanted.items() if name in known}
        if not mine or "cuda" not in card.devices or "decode" not in card.phases:
            return card
        return replace(
            card,
            constants=tuple({**dict(card.constants), **mine}.items()),
            computed=tuple((name, rule) for name, rule in card.computed if name not in mine),
        )

    return tuple(map(change, cards))


def kept_states(plan: Plan, interpreter: Interpreter) -> Callable[[], None]:
    """What puts the states back as they are now."""
    layers = [layer for layer, kind in enumerate(plan.model.layer_kinds) if kind == "linear"]
    tensors = [
        interpreter.views.tensor(Value(name, (layer, 1))) for name in STATES for layer in layers
    ]
    copies = [tensor.clone() for tensor in tensors]

    @torch.inference_mode()
    def restore() -> None:
        for tensor, copy in zip(tensors, copies, strict=True):
            tensor.copy_(copy)

    return restore


@torch.inference_mode()
def same_bits(
    interpreter: Interpreter, replays: Sequence[Replay], size: int, restore: Replay, turns: int = 20
) -> dict[str, object]:
    """Whether all graphs give the logits of the first, bit for bit, each time: a race shows as a difference."""
    logits = interpreter.views.tensor(Value("decode.logits"))[:size]
    expected = None
    different, worst = 0, 0.0
    for _ in range(turns):
        for replay in replays:
            restore()
            logits.fill_(float("nan"))
            replay()
            torch.cuda.synchronize()
            if expected is None:
                expected = logits.clone()
            if not torch.equal(logits, expected):
                different += 1
                worst = max(worst, (logits - expected).abs().max().item())
    assert expected is not None
    return {
        "different": different,
        "of": turns * len(replays),
        "worst": worst,
        "finite": bool(expected.isfinite().all()),
        "deviation": expected.std().item(),
    }


def breakdown(replay: Replay, count: int = 8) -> Iterator[dict[str, object]]:
    """Kernels of a replayed graph by name and grid: launches a step, median us of one, us a step; and the gaps."""
    replay()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            replay()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    kernels = sorted(
        (event for event in events if event.get("cat") == "kernel" and event["name"] not in BESIDE),
        key=lambda event: event["ts"],
    )
    if not kernels:
        yield {
            "case": "profile",
            "kernels": 0,
            "categories": sorted({str(event.get("cat")) for event in events}),
        }
        return
    each = len(kernels) // count
    named: dict[str, list[float]] = {}
    spans: dict[str, list[float]] = {}
    for index, event in enumerate(kernels):
        grid = "x".join(map(str, event["args"]["grid"]))
        name = f"{event['name']} {grid}"
        named.setdefault(name, []).append(event["dur"])
        if index % each < each - 1:
            # From its end to the next one's end is what it costs a step, whatever overlaps.
            later = kernels[index + 1]
            spans.setdefault(
                f"{later['name']} {'x'.join(map(str, later['args']['grid']))}", []
            ).append(later["ts"] + later["dur"] - event["ts"] - event["dur"])
    for name, times in sorted(named.items(), key=lambda item: -sum(item[1])):
        ends = spans.get(name, [0.0])
        yield {
            "case": "kernel",
            "name": name,
            "launches": round(len(times) / count, 2),
            "us": round(statistics.median(times), 2),
            "us_a_step": round(sum(times) / count, 1),
            "us_end_to_end": round(statistics.median(ends), 2),
            "end_to_end_a_step": round(sum(ends) / count, 1),
        }
    steps = [kernels[begin : begin + each] for begin in range(0, each * count, each)]
    whole = [step[-1]["ts"] + step[-1]["dur"] - step[0]["ts"] for step in steps]
    busy = [sum(event["dur"] for event in step) for step in steps]
    yield {
        "case": "profile",
        "kernels": each,
        "us": round(statistics.median(whole), 1),
        "busy_us": round(statistics.median(busy), 1),
        "gaps_us": round(statistics.median(a - b for a, b in zip(whole, busy, strict=True)), 1),
    }
