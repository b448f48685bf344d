"""Times of `mixer_prefill.py`: prefill kernels in graphs, microseconds a launch, beside their floors."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import torch
from mixer_prefill_operands import (
    ATTENTION_FORMS,
    DEVICE,
    GDN,
    GDN_FORMS,
    MINIMAX,
    MODELS,
    QWEN,
    RESTORE,
    ROUTE_FORMS,
    Launch,
    Part,
    attention_operands,
    emit,
    gdn_operands,
    ints,
    make_rows,
    nans,
    randn,
    route_operands,
    run_attention,
    run_gdn,
    run_route,
)

from firmtoken.runtime.kernels.add_norm.triton_rows import add_norm
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.embed.triton_gather import embed
from firmtoken.runtime.kernels.gdn import triton_chunk
from firmtoken.runtime.kernels.qk_norm_rope_kv.triton_heads import qk_norm_rope_kv
from firmtoken.runtime.kernels.restore.triton_slots import restore
from firmtoken.runtime.kernels.row_norm_rope_kv.triton_heads import row_norm_rope_kv

PEAK_FLOP = 989e12
PEAK_BYTES = 4.8e12
GDN_SIZES = (108, 513, 1508, 2048, 4096)
SPANS = {
    "6,008 from scratch": ((0, 2048), (2048, 2048), (4096, 1912)),
    "2,000 at 32k": ((32_768, 2000),),
    "1,508": ((0, 1508),),
    "108": ((0, 108),),
    "100 at 3,000": ((2968, 100),),
    "60 at 32k": ((32_768, 60),),
}


def microseconds(launches: Sequence[Launch], *, repeats: int = 5) -> float:
    """Median time of the launches together, in one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launches[0]()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()
        graph.replay()
        taken = []
        for _ in range(repeats):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begun.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            taken.append(begun.elapsed_time(ended) * 1e3)
    return sorted(taken)[len(taken) // 2]


def timed(
    what: dict[str, object], launches: Sequence[Launch], *, flop: float = 0, num_bytes: float = 0
) -> None:
    """`launches` in turn; `flop` and `num_bytes` of one of them."""
    try:
        took = microseconds(launches) / len(launches)
        floor = max(flop / PEAK_FLOP, num_bytes / PEAK_BYTES) * 1e6
        line = {"us": round(took, 2), "floor": round(floor, 2), "share": round(floor / took, 3)}
        if flop:
            line["tflops"] = round(flop / took / 1e6, 1)
        emit(time=what, **line)
    except Exception as error:
        emit(time=what, failed=repr(error)[-300:])


class Skipped:
    """Stands where a Triton function stood."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *operands, **constants: None


def by_function(num_rows: int, launches: Sequence[Launch]) -> None:
    """Each of the functions of gdn alone, over what the others have left."""
    names = ("convolve_chunks", "prepare_chunks", "advance_states", "read_chunks")
    kept = {name: getattr(triton_chunk, name) for name in names}
    for name in names:
        for other in names:
            setattr(triton_chunk, other, kept[other] if other == name else Skipped())
        timed({"gdn": num_rows, "function": name}, launches)
    for name in names:
        setattr(triton_chunk, name, kept[name])


def gdn_launches(num_rows: int, form: dict[str, int]) -> list[Launch]:
    """Over several copies of all operands."""
    rows = make_rows((Part(rows=num_rows),))
    copies = [gdn_operands(num_rows, 5) for _ in range(2 if num_rows > 600 else 6)]
    return [partial(run_gdn, rows, own, form) for own in copies * 4]


def time_gdn(forms: Sequence[int] = (0,)) -> None:
    """By the numbers of the forms; all sizes for the first."""
    for num_rows in GDN_SIZES:
        # u, o and a sequence's states once; products as `chunk.py` has them.
        num_bytes = num_rows * (12_352 + 4096) * 2 + 2 * 2 * 32 * 128 * 128 * 4
        flop = num_rows * 32 * 2 * (64 * 128 * 2 + 64 * 128 * 2 + 128 * 128 * 3 + 64 * 64 / 2)
        for number in forms:
            form = GDN_FORMS[number]
            if number and num_rows not in (108, 2048):
                continue
            launches = gdn_launches(num_rows, form)
            changed = {k: v for k, v in form.items() if v != GDN[k]}
            timed({"gdn": num_rows, **changed}, launches, flop=flop, num_bytes=num_bytes)
            if num_rows in (108, 2048):
                by_function(num_rows, launches)
            del launches
            torch.cuda.empty_cache()


def try_gdn(number: int) -> None:
    """Many launches of a form, each awaited."""
    for num_rows in (108, 2048):
        for _ in range(3):
            for launch in gdn_launches(num_rows, GDN_FORMS[number]):
                launch()
                torch.cuda.synchronize()
            emit(tried=number, rows=num_rows)


def time_attention() -> None:
    for (model, coded), (name, tiles) in itertools.product(ATTENTION_FORMS, SPANS.items()):
        shape, _, page_size = MODELS[model]
        launches: list[tuple[DeviceRows, dict[str, torch.Tensor]]] = []
        flop = num_bytes = 0.0
        for start, count in tiles:
            rows = make_rows((Part(rows=count, start=start),), page_size)
            launches.append((rows, attention_operands(rows, model, coded=coded)))
            seen = sum(range(start + 1, start + count + 1))
            flop += 4 * shape["num_q_heads"] * shape["head_dim"] * seen
            width = shape["num_kv_heads"] * shape["head_dim"]
            num_bytes += 2 * (start + count) * width * (1 if coded else 2)
        for form in ATTENTION_FORMS[model, coded]:
            what = {"attention": model, "fp8": coded, "rows": name, "form": list(form.values())}
            all_tiles = partial(run_tiles, launches, model, form)
            timed(what, [all_tiles] * 6, flop=flop, num_bytes=num_bytes)


def run_tiles(
    launches: Sequence[tuple[DeviceRows, dict[str, torch.Tensor]]],
    model: str,
    form: dict[str, int],
) -> None:
    for rows, own in launches:
        run_attention(rows, own, model, form)


def time_route() -> None:
    for num_rows, form in itertools.product((108, 2048, 8192), ROUTE_FORMS):
        rows = make_rows((Part(rows=num_rows),))
        copies = [route_operands(num_rows, 2048, sigmoid=False) for _ in range(4)]
        launches = [partial(run_route, rows, own, form) for own in copies * 5]
        flop, num_bytes = 2 * num_rows * 2048 * 256, (num_rows + 256) * 2048 * 2
        what = {"route": num_rows, "form": list(form.values())}
        timed(what, launches, flop=flop, num_bytes=num_bytes)


def time_rest() -> None:
    states = {
        "conv_state": randn(9, 8192, 3),
        "recurrent_state": randn(9, 32, 128, 128, dtype=torch.float32),
    }
    snaps = torch.zeros(4, 2_146_304, dtype=torch.uint8, pin_memory=True)
    for name, move in (("zeros", (-1, 1, 2)), ("a snapshot", (1, 1, 2))):
        rows = SimpleNamespace(restores=ints(move).view(1, 3))
        for block in (1024, 4096):
            launch = partial(restore, rows, **states, snaps=snaps, **{**RESTORE, "block": block})
            timed({"restore": name, "block": block}, [launch] * 20, num_bytes=2_146_304 * 2)
    for num_rows in (2048, 8192):
        time_rows(num_rows)
        time_heads("qk_norm", QWEN, qk_norm_rope_kv, num_rows)
        time_heads("row_norm", MINIMAX, row_norm_rope_kv, num_rows)
        torch.cuda.empty_cache()


def time_rows(num_rows: int) -> None:
    """embed and add_norm."""
    rows = make_rows((Part(rows=num_rows),))
    table, norm = randn(100_000, 2048), torch.rand(2048, device=DEVICE)
    hids, ys = ([randn(num_rows, 2048) for _ in range(5)] for _ in range(2))
    one = num_rows * 2048 * 2
    launches = [partial(embed, rows, table=table, hid=hid, block=1024, warps=4) for hid in hids * 4]
    timed({"embed": num_rows}, launches, num_bytes=2 * one)
    for warps in (4, 8):
        fixed = {"norm": norm, "eps": 1e-6, "warps": warps, "early": True}
        launches = [
            partial(add_norm, None, hid=hid, y=y, h=y, **fixed)
            for hid, y in zip(hids * 4, ys * 4, strict=True)
        ]
        timed({"add_norm": num_rows, "warps": warps}, launches, num_bytes=4 * one)


def time_heads(name: str, shape: dict[str, int], call: Callable[..., None], num_rows: int) -> None:
    gated = shape is QWEN
    page_size = 64 if gated else 16
    rows = make_rows((Part(rows=num_rows),), page_size)
    q_heads, kv_heads, dim = shape.values()
    width = (q_heads * (2 if gated else 1) + 2 * kv_heads) * dim
    kv_shape = (2, int(rows.pages.max()) + 1, page_size, kv_heads, dim)
    norms = [torch.rand(dim * (1 if gated else n), device=DEVICE) for n in (q_heads, kv_heads)]
    fixed = {
        **shape,
        **({"gated": True} if gated else {}),
        "kv": torch.zeros(kv_shape, dtype=torch.bfloat16, device=DEVICE),
        "q_norm": norms[0],
        "k_norm": norms[1],
        "rotary_dim": 64,
        "rope_theta": 1e7,
        "eps": 1e-6,
        "page_size": page_size,
        "early": False,
    }
    copies = [(randn(num_rows, width), nans(num_rows, q_heads * dim)) for _ in range(3)]
    moved = num_rows * (2 * q_heads + 4 * kv_heads) * dim * 2
    for warps in (1, 2, 4):
        launches = [
            partial(call, rows, qkv=qkv, q=q, **fixed, warps=warps) for qkv, q in copies * 4
        ]
        timed({name: num_rows, "warps": warps}, launches, num_bytes=moved)
