"""The kernels of a layer's experts on a real GPU: right, then how fast. A plain script, no test of CI.

    PYTHONPATH=.src python tests/device/moe.py [--peak GB_PER_S] [--seconds N]

It needs torch and Triton only, and prints JSON lines. `check`: the largest error beside its bound, fresh random inputs,
poisoned outputs, slots beyond 2^31 bytes. `time`: microseconds a launch in a CUDA graph over the weights of all layers
(far more than L2), and the share of `--peak` that reading them is; with other constants too, to choose a card's by.
`layers`: the experts' half of a layer in a graph of all layers, with more and more of it in one launch, and with
launches that start early. Exit code 1 where a check fails.
"""

import argparse
import contextlib
import functools
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import triton
from moe_checks import all_checks
from moe_model import ADD_NORM, COMBINE, MINIMAX, QWEN, ROUTE, Constants, Launches, Model, Values

TIMED_ROWS = (1, 2, 4)
COMPILERS = 12


def tiles(*sizes: tuple[int, int, int]) -> tuple[Constants, ...]:
    return tuple({"warps": w, "lanes": n, "outputs": o} for w, n, o in sizes)


Others = dict[str, tuple[Constants, ...]]
OTHERS: dict[str, Others] = {
    "qwen3.6": {
        "gate_up": tiles((1, 32, 4), (1, 32, 1)),
        "down": tiles((1, 8, 2), (1, 16, 4), (2, 8, 4)),
        "down_combine": tiles((1, 32, 2), (1, 16, 2)),
        "route": tuple({"experts_at_once": count} for count in (1, 4)),
    },
    "minimax": {
        "gate_up": tiles((1, 32, 1), (1, 16, 1)),
        "down": tiles((1, 32, 4), (1, 16, 2), (1, 32, 8)),
        "down_combine": (),
        "route": (),
    },
}


def microseconds(launch: Callable[[int], None], layers: int) -> float:
    """Median time of a layer in a graph of all layers."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        turns = max(1, 40 // layers)
        with torch.cuda.graph(graph, stream=stream):
            for layer in range(layers * turns):
                launch(layer % layers)
        graph.replay()
        taken = []
        for _ in range(11):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            taken.append(begun.elapsed_time(ended) * 1e3 / (layers * turns))
    return sorted(taken)[len(taken) // 2]


Timed = tuple[str, Constants, Callable[[int], None], int]


def ops(model: Model, launch: Launches, *, others: bool) -> Iterator[Timed]:
    """(name, constants, launch of a layer, bytes of weights that it must read)"""
    geo = model.geometry
    v = launch.values
    folded = geo.shared > 0
    distinct = int(v.ids.unique().numel())
    half = geo.hidden * geo.width * 9 // 16
    shared = geo.hidden * geo.shared * 9 // 16
    gate_up_bytes, down_bytes = distinct * 2 * half + 2 * shared, distinct * half + shared

    def of(name: str, mine: Constants) -> tuple[Constants, ...]:
        return OTHERS[geo.name][name] if others else (mine,)

    for c in of("route", ROUTE):
        size = geo.experts * geo.hidden * 2
        yield "route", c, lambda layer, c=c: launch.route(layer, c), size
    for c in of("gate_up", geo.gate_up):
        run = lambda layer, c=c: launch.gate_up(layer, c, folded=folded)  # noqa: E731
        yield "gate_up", c, run, gate_up_bytes
    for c in of("down", geo.down):
        run = lambda layer, c=c: launch.down(layer, c, folded=folded)  # noqa: E731
        yield "down", c, run, down_bytes
    for c in of("down_combine", geo.down_combine):
        run = lambda layer, c=c: launch.down_combine(layer, c, folded=folded)  # noqa: E731
        yield "down_combine", c, run, down_bytes
    if not others:
        yield "add_norm", ADD_NORM, launch.add_norm, 0
        size = geo.experts * geo.hidden * 2
        yield "add_norm_route", geo.norm_route, launch.add_norm_route, size
        yield "combine", COMBINE, lambda layer: launch.combine(layer, summed=folded), 0
        if folded:
            yield "shared_expert", {}, launch.shared, 3 * shared


def times(model: Model, peak: float, *, others: bool, until: float) -> Iterator[dict[str, object]]:
    for num_rows in (1, 4) if others else TIMED_ROWS:
        v = Values(model, num_rows, num_rows)
        v.draw_routes(model.geometry)
        launch = Launches(model, v)
        for name, constants, run, size in ops(model, launch, others=others):
            if time.monotonic() > until:
                return
            head = {"time": model.geometry.name, "op": name, "rows": num_rows, **constants}
            try:
                v.draw_routes(model.geometry)
                took = microseconds(run, model.geometry.layers)
                share = size / took / 1e3 / peak
                yield {**head, "us": round(took, 2), "bytes": size, "share": round(share, 3)}
            except Exception as error:  # one that breaks must not hide the others
                yield {**head, "error": repr(error)[:600]}


Half = tuple[str, int, bool, Callable[[int], None]]
"""What, launches, whether they start early, the experts' half of a layer."""


def halves(model: Model, values: Values) -> Iterator[Half]:
    geo = model.geometry
    folded = geo.shared > 0

    def apart(layer: int) -> None:
        launch.add_norm(layer)
        launch.route(layer)
        launch.gate_up(layer, geo.gate_up, folded=False)
        launch.down(layer, geo.down, folded=False)
        if folded:
            launch.shared(layer)
        launch.combine(layer, summed=folded)

    def shared_folded(layer: int) -> None:
        launch.add_norm(layer)
        launch.route(layer)
        launch.gate_up(layer, geo.gate_up, folded=folded)
        launch.down(layer, geo.down, folded=folded)
        launch.combine(layer, summed=folded)

    def normed(layer: int) -> None:
        launch.add_norm_route(layer)
        launch.gate_up(layer, geo.gate_up, folded=folded)
        launch.down(layer, geo.down, folded=folded)
        launch.combine(layer, summed=folded)

    def combined(layer: int) -> None:
        launch.add_norm(layer)
        launch.route(layer)
        launch.gate_up(layer, geo.gate_up, folded=folded)
        launch.down_combine(layer, geo.down_combine, folded=folded)

    def both(layer: int) -> None:
        launch.add_norm_route(layer)
        launch.gate_up(layer, geo.gate_up, folded=folded)
        launch.down_combine(layer, geo.down_combine, folded=folded)

    for early in (False, True):
        launch = Launches(model, values, early=early)
        if folded and not early:
            yield "each op a launch", 7, early, apart
        yield "shared expert folded in", 5, early, shared_folded
        yield "add_norm and route in one", 4, early, normed
        if folded:
            yield "down and combine in one", 4, early, combined
            yield "both in one", 3, early, both


def all_layers(model: Model) -> Iterator[dict[str, object]]:
    for num_rows in TIMED_ROWS:
        v = Values(model, num_rows, num_rows)
        for what, launches, early, run in halves(model, v):
            head = {"layers": model.geometry.name, "rows": num_rows, "what": what, "early": early}
            try:
                took = microseconds(run, model.geometry.layers)
                yield {**head, "launches": launches, "us_a_layer": round(took, 2)}
            except Exception as error:  # one that breaks must not hide the others
                yield {**head, "error": repr(error)[:600]}


def forms(models: tuple[Model, ...]) -> Iterator[Callable[[], None]]:
    """One launch of every form."""
    for model in models:
        v = Values(model, 1, 1)
        v.draw_routes(model.geometry)
        launch = Launches(model, v)
        for others in (False, True):
            for _, _, run, _ in ops(model, launch, others=others):
                yield functools.partial(run, 0)
        for _, _, _, run in halves(model, v):
            yield functools.partial(run, 0)


def compile_share(share: int) -> None:
    """Every so manieth form, in a process of its own: they go to the compiler's cache. What fails will fail again."""
    models = tuple(Model(replace(geometry, layers=1)) for geometry in (QWEN, MINIMAX))
    for index, launch in enumerate(forms(models)):
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
    parser.add_argument(
        "--seconds", type=float, default=85.0, help="after these no other constants"
    )
    parser.add_argument("--compile", type=int, help="of the processes that this script starts")
    given = parser.parse_args()
    if given.compile is not None:
        with torch.inference_mode():
            compile_share(given.compile)
        return 0
    begun = time.monotonic()
    until = begun + given.seconds
    torch.manual_seed(time.time_ns() % 2**31)
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = False

    def tell(row: dict[str, object]) -> None:
        print(json.dumps(row), flush=True)

    compile_at_once()
    with torch.inference_mode():
        models = (Model(QWEN), Model(MINIMAX))
        versions = {"torch": torch.__version__, "triton": triton.__version__}
        tell({"device": torch.cuda.get_device_name(), **versions, "seed": torch.initial_seed()})
        tell({"compiled_s": round(time.monotonic() - begun, 1)})
        for model in models:
            for row in all_checks(model):
                failed |= not row["ok"]
                tell(row)
        for model in models:
            for row in itertools.chain(
                all_layers(model), times(model, given.peak, others=False, until=float("inf"))
            ):
                tell(row)
        for model in models:
            for row in times(model, given.peak, others=True, until=until):
                tell(row)
    tell({"failed": failed, "seconds": round(time.monotonic() - begun, 1)})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
