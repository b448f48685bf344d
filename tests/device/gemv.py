"""The NVFP4 kernel on a real GPU: right, then how fast. A plain script, no test of CI; needs torch and Triton only.

    PYTHONPATH=.src python tests/device/gemv.py [--peak GB_PER_S] [--seconds N]

Prints JSON lines. `checks`: the largest error of each shape beside its bound, with fresh random inputs and
poisoned outputs. Then microseconds a launch in a CUDA graph that walks through copies of the weights that together
are larger than L2, GB/s of what must be read and written, and its share of `--peak`. For both forms with
some constants, to choose the card's by. Exit code 1 where a check fails.
"""

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import triton

from firmtoken.runtime.kernels.head import NVFP4_PRODUCTS as LARGE
from firmtoken.runtime.kernels.head.triton_nvfp4 import head
from firmtoken.runtime.kernels.linear import NVFP4_PRODUCTS
from firmtoken.runtime.kernels.linear.triton_nvfp4 import linear
from firmtoken.runtime.kernels.matrices import PackedMatrix

COMPILERS = 16
NEVER = 1 << 30
CARD = {**dict(NVFP4_PRODUCTS), "early": True}
CHECKED = (
    {**CARD, "few": NEVER},
    {**CARD, **dict(LARGE), "few": NEVER},
    {**CARD, "few": 0, "tile_outputs": 64},
    {**CARD, "few": 0, "tile_outputs": 16},
)
"""Constants of each form."""
EPS = 1e-6
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
GUARD = 64
"""Poisoned elements behind each output: none of them may be written."""

# name, N, first rows of joined parts, K
SHAPES = (
    ("qwen3.6 lm_head", 248_320, (), 2048),
    ("lm_head without its norm", 248_320, (), 2048),
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
ROWS = (1, 3, 4, 8, 13)


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


def check(
    name: str, w: PackedMatrix, num_rows: int, constants: dict[str, int], *, normed: bool
) -> dict[str, object]:
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
        head(None, last=x, norm=norm, w=w, logits=y, eps=EPS, **constants)
        mean = exact.pow(2).mean(1, keepdim=True)
        exact = exact / (mean + EPS).sqrt() * norm.double()
    else:
        linear(None, x=x, w=w, y=y, **constants)
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
        **constants,
        "worst": worst,
        "bound": bound,
        "ok": worst < bound and untouched,
    }


def all_checks() -> Iterator[dict[str, object]]:
    for name, num_outputs, starts, width in (*ODD, SHAPES[0], *SHAPES[2:]):
        w = random_matrix(num_outputs, starts, width)
        large = num_outputs > 100_000
        cases = itertools.product((4,) if large else ROWS, CHECKED, (False, True))
        for num_rows, constants, normed in cases:
            try:
                yield check(name, w, num_rows, constants, normed=normed)
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
    normed = name == SHAPES[0][0]
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


def others() -> Iterator[tuple[str, int, dict[str, int]]]:
    """Shapes, rows and constants to compare, those that matter most first."""
    large, small = SHAPES[0][0], ("qwen3-30b qkv", "minimax expert w2")
    for num_rows, tile_outputs in itertools.product((1, 4, 8, 16), (64, 32, 16)):
        yield large, num_rows, {**CARD, "few": 0, "tile_outputs": tile_outputs}
    for num_rows, outputs, unroll in (
        (1, 8, 4),
        (1, 8, 2),
        (1, 8, 1),
        (1, 16, 1),
        (1, 4, 4),
        (4, 8, 1),
        (4, 4, 1),
        (2, 8, 1),
        (2, 4, 2),
    ):
        # The kernel divides `unroll` by its rows, so this is `unroll` words in flight for each of them.
        row_form = {"outputs": outputs, "unroll": unroll * num_rows, "few": NEVER}
        yield large, num_rows, {**CARD, **row_form}
    for name, num_rows, tile_outputs in itertools.product(small, (1, 4, 8, 16), (16, 32)):
        yield name, num_rows, {**CARD, "few": 0, "tile_outputs": tile_outputs}
    for name, num_rows, outputs in itertools.product(small, (1, 4, 8), (2, 4)):
        row_form = {"outputs": outputs, "unroll": 2 * num_rows, "few": NEVER}
        yield name, num_rows, {**CARD, **row_form}
    yield "lm_head without its norm", 4, {**CARD, "few": 0, "tile_outputs": 64}
    yield "lm_head without its norm", 16, {**CARD, "few": 0, "tile_outputs": 64}


def compile_share(share: int) -> None:
    """Every so manieth form, in a process of its own: they go to the compiler's cache. What fails will fail again."""
    w = random_matrix(64, (), 128)
    wanted = {
        (name.startswith("qwen3.6 lm_head"), rows, tuple(sorted(constants.items())))
        for name, rows, constants in others()
    }
    wanted |= {
        (normed, rows, tuple(sorted(constants.items())))
        for normed, rows, constants in itertools.product((False, True), ROWS, CHECKED)
    }
    for normed, rows, items in sorted(wanted)[share::COMPILERS]:
        x, norm = torch.zeros(rows, 128, device="cuda").bfloat16(), torch.ones(128, device="cuda")
        y = torch.empty(rows, 64, dtype=torch.float32 if normed else torch.bfloat16, device="cuda")
        with contextlib.suppress(Exception):
            if normed:
                head(None, last=x, norm=norm, w=w, logits=y, eps=EPS, **dict(items))
            else:
                linear(None, x=x, w=w, y=y, **dict(items))
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
        "--seconds", type=float, default=75.0, help="after these no other constants"
    )
    parser.add_argument("--compile", type=int, help="of the processes that this script starts")
    given = parser.parse_args()
    if given.compile is not None:
        compile_share(given.compile)
        return 0
    begun = time.monotonic()
    torch.manual_seed(time.time_ns() % 2**31)
    torch.backends.cuda.matmul.allow_tf32 = False

    def tell(row: dict[str, object]) -> None:
        print(json.dumps(row), flush=True)

    compile_at_once()
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    tell({"device": torch.cuda.get_device_name(), **versions, "seed": torch.initial_seed()})
    tell({"compiled_s": round(time.monotonic() - begun, 1)})
    checks = list(all_checks())
    failed = [row for row in checks if not row["ok"]]
    worst = max(float(str(row.get("worst", 0.0))) for row in checks)
    tell({"checks": len(checks), "failed": len(failed), "worst": worst, "first": failed[:8]})
    tell({"checked_s": round(time.monotonic() - begun, 1)})
    for name, num_rows, constants in others():
        if time.monotonic() < begun + given.seconds:
            tell(timed(name, num_rows, constants, given.peak))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
