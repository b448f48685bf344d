"""The NVFP4 kernel on a real GPU: right, then how fast. A plain script, no test of CI; needs torch and Triton only.

    PYTHONPATH=.src python tests/device/gemv.py [--peak GB_PER_S] [--sweep] [--seconds N]

Prints one JSON object. `checks`: the largest error of each shape beside its bound, with fresh random inputs and
poisoned outputs. `times`: microseconds a launch in a CUDA graph that walks through copies of the weights that together
are larger than L2, GB/s of what must be read and written, and its share of `--peak`. `sweep`: other constants at the
largest shapes, to choose the card's by. Exit code 1 where a check fails.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import triton

from firmtoken.runtime.kernels.head.triton_nvfp4 import head
from firmtoken.runtime.kernels.linear import NVFP4_ROWS
from firmtoken.runtime.kernels.linear.triton_nvfp4 import PackedMatrix, linear

CARD = dict(NVFP4_ROWS)
EPS = 1e-6
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GUARD = 64
"""Poisoned elements behind each output: none of them may be written."""

# name, N, first rows of joined parts, K
SHAPES = (
    ("qwen3.6 lm_head", 248_320, (), 2048),
    ("qwen3.6 shared gate_up", 1024, (512,), 2048),
    ("qwen3.6 shared down", 2048, (), 512),
    ("qwen3-30b qkv", 5120, (4096, 4608), 2048),
    ("qwen3-30b o", 2048, (), 4096),
    ("minimax expert w1 and w3", 3072, (1536,), 3072),
    ("minimax expert w2", 3072, (), 1536),
)
ODD = (
    ("odd", 37, (5, 21), 528),
    ("one output", 1, (), 16),
    ("four parts", 4099, (7, 8, 4000), 2064),
)
ROWS = (1, 2, 3, 4, 5, 8, 13)
TIMED_ROWS = (1, 2, 4, 8)


def random_matrix(num_outputs: int, starts: tuple[int, ...], width: int) -> PackedMatrix:
    """All codes; scales from all that are no NaN, so that subnormal and negative ones are among them."""
    scale = torch.randint(0, 254, (num_outputs, width // 16), dtype=torch.int32, device="cuda")
    return PackedMatrix(
        packed=torch.randint(0, 256, (num_outputs, width // 2), dtype=torch.uint8, device="cuda"),
        scale=(scale + (scale >= 127)).to(torch.uint8),
        globals=torch.rand(len(starts) + 1, device="cuda") * 1e-4 + 1e-5,
        starts=starts,
    )


def rows_of(w: PackedMatrix, first: int, last: int) -> torch.Tensor:
    """fp64 [last - first, K], by the definition of the format."""
    values = torch.tensor((*E2M1, *(-value for value in E2M1)), dtype=torch.float64, device="cuda")
    packed = w.packed[first:last].long()
    codes = torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)
    scale = w.scale[first:last].view(torch.float8_e4m3fn).float().double()
    ends = torch.tensor(w.starts, device="cuda")
    part = torch.bucketize(torch.arange(first, last, device="cuda"), ends, right=True)
    factor = scale.repeat_interleave(16, dim=1) * w.globals.double()[part].unsqueeze(1)
    return values[codes] * factor


def check(name: str, w: PackedMatrix, num_rows: int, *, normed: bool) -> dict[str, object]:
    """Largest |error| over sum |x| |w| of an output, less 2^-8 of bf16, against the fp32 sum's bound."""
    num_outputs, half = w.packed.shape
    width = 2 * half
    x = torch.randn(num_rows, width + 16, device="cuda").bfloat16()[:, 8 : width + 8]
    norm = torch.rand(width, device="cuda") + 0.5
    kind = torch.float32 if normed else torch.bfloat16
    poisoned = torch.full(
        (num_rows * num_outputs + GUARD,), float("nan"), dtype=kind, device="cuda"
    )
    y = poisoned[: num_rows * num_outputs].view(num_rows, num_outputs)
    exact = x.double()
    if normed:
        head(None, last=x, norm=norm, w=w, logits=y, eps=EPS, **CARD)
        mean = exact.pow(2).mean(1, keepdim=True)
        exact = exact / (mean + EPS).sqrt() * norm.double()
    else:
        linear(None, x=x, w=w, y=y, **CARD)
    worst = 0.0
    for first in range(0, num_outputs, 8192):
        last = min(first + 8192, num_outputs)
        weights = rows_of(w, first, last)
        wanted = exact @ weights.T
        size = exact.abs() @ weights.abs().T
        error = (y[:, first:last].double() - wanted).abs()
        rounding = 0.0 if normed else 2.0**-8
        # What bf16 rounds away is in proportion to the result, what fp32 sums lose to the sum of magnitudes.
        relative = (error - rounding * wanted.abs()).clamp(min=0) / size
        worst = max(worst, float(relative.nan_to_num(nan=float("inf")).max()))
    untouched = bool(poisoned[num_rows * num_outputs :].isnan().all())
    bound = 2.0**-18
    return {
        "shape": name,
        "op": "head" if normed else "linear",
        "rows": num_rows,
        "worst": worst,
        "bound": bound,
        "ok": worst < bound and untouched,
    }


def all_checks() -> Iterator[dict[str, object]]:
    for name, num_outputs, starts, width in (*ODD, *SHAPES):
        w = random_matrix(num_outputs, starts, width)
        large = num_outputs > 100_000
        for num_rows, normed in itertools.product((1, 8) if large else ROWS, (False, True)):
            try:
                yield check(name, w, num_rows, normed=normed)
            except Exception as error:  # one that breaks must not hide the others
                yield {"shape": name, "rows": num_rows, "error": repr(error)[:500], "ok": False}


def nanoseconds(launch: Callable[[int], None], num_copies: int) -> float:
    """Median time of a launch: graphs that each walk once through all copies."""
    launches = max(num_copies, 40)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for index in range(launches):
                launch(index % num_copies)
        graph.replay()
        taken = []
        for _ in range(7):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            taken.append(begun.elapsed_time(ended) * 1e6 / launches)
    return sorted(taken)[len(taken) // 2]


def time_shape(
    name: str,
    shape: tuple[int, tuple[int, ...], int],
    num_rows: int,
    constants: dict[str, int],
    peak: float,
) -> dict[str, object]:
    num_outputs, starts, width = shape
    normed = name.endswith("lm_head")
    size = num_outputs * width * 9 // 16
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    w = random_matrix(num_outputs, starts, width)
    copies = [
        replace(w, packed=w.packed.clone(), scale=w.scale.clone())
        for _ in range(min(1 + 3 * l2 // size, 400))
    ]
    x = torch.randn(num_rows, width, device="cuda").bfloat16()
    norm = torch.rand(width, device="cuda")
    kind = torch.float32 if normed else torch.bfloat16
    y = torch.empty(num_rows, num_outputs, dtype=kind, device="cuda")

    def launch(index: int) -> None:
        if normed:
            head(None, last=x, norm=norm, w=copies[index], logits=y, eps=EPS, **constants)
        else:
            linear(None, x=x, w=copies[index], y=y, **constants)

    took = nanoseconds(launch, len(copies))
    moved = size + x.numel() * 2 + y.numel() * y.element_size()
    return {
        "shape": name,
        "n": num_outputs,
        "k": width,
        "rows": num_rows,
        **constants,
        "us": round(took / 1e3, 2),
        "bytes": moved,
        "gb_per_s": round(moved / took, 1),
        "share_of_peak": round(moved / took / peak, 3),
    }


def timed(name: str, num_rows: int, constants: dict[str, int], peak: float) -> dict[str, object]:
    shape = next((n, starts, k) for other, n, starts, k in SHAPES if other == name)
    try:
        return time_shape(name, shape, num_rows, constants, peak)
    except Exception as error:  # one that breaks must not hide the others
        return {"shape": name, "rows": num_rows, **constants, "error": repr(error)[:500]}


def sweep(peak: float, until: float) -> list[dict[str, object]]:
    """Other constants: the five fastest of each shape and number of rows, of those that there was time for."""
    found: dict[tuple[str, int], list[dict[str, object]]] = {}
    for outputs, unroll in itertools.product((4, 2, 8, 1), (2, 1, 4)):
        for name, num_rows in itertools.product(("qwen3.6 lm_head", "qwen3-30b qkv"), (1, 4)):
            if time.monotonic() > until or outputs * num_rows * unroll > 32:
                continue
            # The kernel divides `unroll` by its rows, so this is `unroll` words in flight for each of them.
            constants = {"outputs": outputs, "unroll": unroll * num_rows}
            row = timed(name, num_rows, constants, peak)
            found.setdefault((name, num_rows), []).append(row)
    return [
        row
        for rows in found.values()
        for row in sorted(rows, key=lambda row: float(str(row.get("us", "inf"))))[:5]
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peak", type=float, default=4800.0, help="GB/s of the card's data sheet")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=50.0, help="after these the sweep ends")
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    torch.manual_seed(time.time_ns() % 2**31)
    torch.backends.cuda.matmul.allow_tf32 = False
    checks = list(all_checks())
    times = [
        timed(name, num_rows, CARD, given.peak) for name, *_ in SHAPES for num_rows in TIMED_ROWS
    ]
    told = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "seed": torch.initial_seed(),
        "peak_gb_per_s": given.peak,
        "failed": [row for row in checks if not row["ok"]],
        "checks": len(checks),
        "worst": max(float(str(row.get("worst", 0.0))) for row in checks),
        "times": times,
        "sweep": sweep(given.peak, until) if given.sweep else [],
    }
    print(json.dumps(told))
    return 1 if told["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
