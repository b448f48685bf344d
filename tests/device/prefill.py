"""The products of many rows on a real GPU: right, then how fast. A plain script, no test of CI.

    PYTHONPATH=.src python tests/device/prefill.py [--peak GB_PER_S] [--flops TFLOP_PER_S]

It needs torch and Triton only, and prints JSON lines. `check`: the largest error beside its bound, fresh random inputs,
poisoned outputs, slots beyond 2^31 bytes; `again`: launches whose result differs from the first. `time`: microseconds a
launch in a CUDA graph over the weights of several layers (more than L2), TFLOP/s, and the share of the floor: bytes of
weights at `--peak` or products at `--flops`, whichever is more. Constants are those of the cards, or named B, C
(`prefill_model.py`). `cublas`: torch's own bf16 product of the same size. Exit code 1 where a check fails.
"""

import argparse
import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
import triton
from moe_model import GPU, Model
from prefill_checks import (
    BOUND,
    Check,
    check_again,
    check_combine,
    check_experts,
    check_linear,
    check_shared,
)
from prefill_model import (
    BLOCKS,
    CUTS,
    FP8_CUTS,
    GEOMETRIES,
    LINEARS,
    Prompt,
    coded,
    multiply,
    only,
)

from firmtoken.runtime.kernels.tile_shapes import TileShapes

CHECKED_ROWS = (1, 7, 64, 108, 513, 1508, 2048, 8192)
TIMED_ROWS = (16, 108, 513, 1508, 2048, 8192)
MIXER_ROWS = 2048
COMPILERS = 14
Run = Callable[[int], None]


def microseconds(launch: Run, layers: int, turns: int) -> float:
    """Median time of one launch in a graph of `turns` of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for turn in range(turns):
                launch(turn % layers)
        taken = []
        for _ in range(6):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            taken.append(begun.elapsed_time(ended) * 1e3 / turns)
    return sorted(taken[1:])[2]


def expert_runs(model: Model, v: Prompt) -> Iterator[tuple[str, str, Run, float, float]]:
    """(op, constants, launch, bytes of weights, FLOP)"""
    geo = model.geometry
    touched = int(v.ids[v.ids >= 0].unique().numel())
    pairs = v.num_rows * geo.k
    half = geo.hidden * geo.width
    shared = geo.hidden * geo.shared
    yield "tiles", "", v.tiles, 0, 0
    yield "operand order", "", v.order, 0, 0
    yield "combine", "", lambda _: v.combine(1, shared=geo.shared > 0), pairs * geo.hidden / 2, 0
    for name, c in CUTS.items():
        run = functools.partial(v.gate_up, constants=c)
        yield "gate_up", name, run, touched * half * 9 / 8, pairs * half * 4
        run = functools.partial(v.down, constants=c, block=1)
        size = touched * half * 9 / 16 / BLOCKS
        yield "down, a block", name, run, size, pairs * half * 2 / BLOCKS
        if geo.shared:
            run = functools.partial(v.shared, constants=c)
            yield "shared", name, run, shared * 27 / 16, v.num_rows * shared * 6
    for room in (0.8, 1.25):
        run = functools.partial(
            with_room, room, functools.partial(v.gate_up, constants=CUTS["card"])
        )
        yield "gate_up", f"card, room {room}", run, touched * half * 9 / 8, pairs * half * 4
    for name in CUTS:
        run = functools.partial(v.experts_half, constants=CUTS[name])
        flop = pairs * half * 6 + v.num_rows * shared * 6
        yield "experts' half", name, run, touched * half * 27 / 16, flop


def with_room(room: float, run: Run, layer: int) -> None:
    """With larger or smaller tiles than the kernel would take for so many pairs."""
    before = TileShapes.tile_rows
    TileShapes.tile_rows = lambda cut, wanted: before(cut, room * wanted)
    run(layer)
    TileShapes.tile_rows = before


def with_rows(rows: int, run: Run, layer: int) -> None:
    """With smaller tiles than the kernel would take for so many rows."""
    before = TileShapes.tile_rows
    TileShapes.tile_rows = lambda *_: rows
    run(layer)
    TileShapes.tile_rows = before


def linear_runs(num_rows: int) -> Iterator[tuple[str, str, Run, float, float]]:
    for linear in LINEARS:
        outputs = linear.outputs + linear.tail
        weights = [coded(linear) for _ in range(4)]
        x = torch.randn(num_rows, linear.width, device=GPU).bfloat16()
        y = torch.empty(num_rows, outputs, device=GPU, dtype=torch.bfloat16)
        flop = 2.0 * num_rows * outputs * linear.width
        for name, c in FP8_CUTS.items():
            run = lambda layer, c=c, w=weights, x=x, y=y: multiply(w[layer], x, y, c)  # noqa: E731
            yield linear.name, name, run, outputs * linear.width, flop
            for rows in (32, 128):
                if 32 < num_rows <= 513:
                    smaller = functools.partial(with_rows, rows, run)
                    yield linear.name, f"{name}, {rows}", smaller, outputs * linear.width, flop
        plain = [torch.randn(outputs, linear.width, device=GPU).bfloat16() for _ in range(4)]
        run = lambda layer, w=plain, x=x, y=y: torch.mm(x, w[layer].t(), out=y)  # noqa: E731
        yield linear.name, "cublas", run, 2.0 * outputs * linear.width, flop


def timed(
    head: dict[str, object],
    runs: Iterator[tuple[str, str, Run, float, float]],
    layers: int,
    given: argparse.Namespace,
) -> Iterator[dict[str, object]]:
    for op, name, run, size, flop in runs:
        row = {**head, "op": op, "cut": name}
        try:
            took = microseconds(run, layers, 2 * layers)
            floor = max(size / given.peak / 1e3, flop / given.flops / 1e6)
            rate = {"tflops": round(flop / took / 1e6, 1), "share": round(floor / took, 3)}
            yield {**row, "us": round(took, 1), **rate}
        except Exception as error:  # one that breaks must not hide the others
            yield {**row, "error": repr(error)[:400]}


def times(models: tuple[Model, ...], given: argparse.Namespace) -> Iterator[dict[str, object]]:
    qwen, minimax = models
    for num_rows in TIMED_ROWS:
        head = {"time": qwen.geometry.name, "rows": num_rows}
        yield from timed(head, expert_runs(qwen, Prompt(qwen, num_rows)), 6, given)
        if num_rows <= MIXER_ROWS:
            yield from timed(head, linear_runs(num_rows), 4, given)
    for num_rows in (108, 2048):
        head = {"time": minimax.geometry.name, "rows": num_rows}
        yield from timed(head, expert_runs(minimax, Prompt(minimax, num_rows)), 2, given)


def checks(models: tuple[Model, ...]) -> Iterator[tuple[dict[str, object], Iterator[Check]]]:
    qwen, minimax = models
    for num_rows in CHECKED_ROWS:
        for name, c in CUTS.items():
            if name == "card" or num_rows in (108, 513, 2048):
                head = {"rows": num_rows, "cut": name}
                mapped = num_rows in (7, 513)
                yield {**head, "mapped": mapped}, check_experts(qwen, num_rows, c, mapped=mapped)
                yield head, check_shared(qwen, num_rows, c)
        for name, c in FP8_CUTS.items():
            if num_rows <= MIXER_ROWS and (name == "card" or num_rows in (108, 513, 2048)):
                for linear in LINEARS:
                    yield {"rows": num_rows, "cut": name}, check_linear(linear, num_rows, c)
        yield {"rows": num_rows}, check_combine(qwen, num_rows)
    yield from repeated(qwen)
    for num_rows in (108, 1508):
        head = {"model": "minimax", "rows": num_rows}
        yield head, check_experts(minimax, num_rows, CUTS["card"], mapped=True)


def repeated(qwen: Model) -> Iterator[tuple[dict[str, object], Iterator[Check]]]:
    """Every launch gives the same bits."""
    for num_rows in (108, 1508, 2048):
        v = Prompt(qwen, num_rows)
        x = torch.randn(num_rows, LINEARS[0].width, device=GPU).bfloat16()
        y = torch.empty(num_rows, LINEARS[0].outputs + LINEARS[0].tail, device=GPU).bfloat16()
        w = coded(LINEARS[0])
        for name, c in CUTS.items():
            head = {"rows": num_rows, "cut": name}
            for op, run, out in (
                ("gate_up", functools.partial(v.gate_up, 1, c), v.a),
                ("down", functools.partial(v.down, 1, c), v.rows),
                ("shared", functools.partial(v.shared, 1, c), v.s),
                ("in_proj", functools.partial(multiply, w, x, y, FP8_CUTS[name]), y),
            ):
                yield {**head, "op": op}, check_again(run, out, 100)


def all_checks(models: tuple[Model, ...]) -> Iterator[dict[str, object]]:
    for head, found in checks(models):
        try:
            for what, error in found:
                yield {"check": what, **head, "error": error, "ok": error <= BOUND}
        except Exception as error:  # one that breaks must not hide the others
            yield {"check": "broken", **head, "error": repr(error)[:400], "ok": False}


def compile_share(share: int) -> None:
    """Every so manieth launch, in a process of its own: they go to the compiler's cache. What fails will fail again."""
    models = tuple(only(geometry) for geometry in GEOMETRIES)
    launches: list[Callable[[], object]] = []
    for num_rows in (16, 108, 513, 1508, 8192):
        for model in models:
            v = Prompt(model, num_rows)
            for _, _, run, _, _ in expert_runs(model, v):
                launches.append(functools.partial(run, 0))
    for num_rows in (16, 108):
        for _, _, run, _, _ in linear_runs(num_rows):
            launches.append(functools.partial(run, 0))
    for index, launch in enumerate(launches):
        if index % COMPILERS == share:
            with contextlib.suppress(Exception):
                launch()
    torch.cuda.synchronize()


def compile_at_once() -> None:
    command = [sys.executable, __file__, "--compile"]
    started = [subprocess.Popen([*command, str(share)]) for share in range(COMPILERS)]
    for process in started:
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=4800.0, help="GB/s of the card's data sheet")
    parser.add_argument("--flops", type=float, default=989.0, help="TFLOP/s of it, bf16, dense")
    parser.add_argument("--compile", type=int, help="of the processes that this script starts")
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    if given.compile is not None:
        with torch.inference_mode():
            compile_share(given.compile)
        return 0
    begun = time.monotonic()
    torch.manual_seed(time.time_ns() % 2**31)
    failed = 0

    def tell(row: dict[str, object]) -> None:
        print(json.dumps({**row, "at": round(time.monotonic() - begun, 1)}), flush=True)

    compile_at_once()
    with torch.inference_mode():
        models = tuple(Model(geometry) for geometry in GEOMETRIES)
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        tell({"device": torch.cuda.get_device_name(), **versions, "seed": torch.initial_seed()})
        count = 0
        for row in all_checks(models):
            count += 1
            if not row["ok"]:
                failed += 1
                tell(row)
        tell({"checks": count, "failed": failed})
        for row in times(models, given):
            tell(row)
    tell({"failed": failed})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
