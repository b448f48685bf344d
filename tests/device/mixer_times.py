"""Times of `mixer.py`: the mixers' decode kernels in graphs."""

import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace

import torch
from mixer_operands import (
    BF16_SHAPES,
    DEVICE,
    FP8,
    FP8_SHAPES,
    GDN,
    GDN_SHAPE,
    HEADS,
    LINEAR,
    MINIMAX,
    MINIMAX_ROTARY,
    QWEN,
    QWEN_ROTARY,
    SAMPLE,
    TUNING,
    VOCABULARY,
    WARM,
    attention_operands,
    emit,
    gdn_operands,
    make_rows,
    nans,
    randn,
    random_coded,
    run_attention,
    sample_operands,
)

from firmtoken.runtime.kernels.batch import Draw
from firmtoken.runtime.kernels.gdn.triton_step import gdn
from firmtoken.runtime.kernels.linear.launch_products import Tuning
from firmtoken.runtime.kernels.linear.triton_bf16 import linear as linear_bf16
from firmtoken.runtime.kernels.linear.triton_fp8 import linear as linear_fp8
from firmtoken.runtime.kernels.qk_norm_rope_kv.triton_heads import qk_norm_rope_kv
from firmtoken.runtime.kernels.row_norm_rope_kv.triton_heads import row_norm_rope_kv
from firmtoken.runtime.kernels.sample.triton_digits import sample

L2_BYTES = 120e6
"""Copies of what is timed take at least this: twice the H200's L2."""

TIMED_LENGTHS = (
    (1024,),
    (8192,),
    (32_768,),
    (131_072,),
    (8192,) * 4,
    (1024,) * 4,
    (131_072, 100, 100, 100),
)


def microseconds(launches: list[Callable[[], None]], *, repeats: int = 7) -> float:
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
    what: dict[str, object],
    make: Callable[[], Callable[[], None]],
    num_bytes: float,
    peak: float,
    *,
    rotate: float = 0,
) -> None:
    """`make` gives a launch over operands of its own, of which `rotate` bytes (else `num_bytes`) are read."""
    if not WARM.mine():
        return
    try:
        if WARM.count > 1:
            make()()
            return
        copies = max(2, int(-(-L2_BYTES // (rotate or num_bytes))))
        own = [make() for _ in range(min(copies, 64))]
        launches = [own[index % len(own)] for index in range(max(len(own), 40))]
        took = microseconds(launches) / len(launches)
        emit(
            time=what,
            us=round(took, 2),
            gb_s=round(num_bytes / took / 1e3),
            share=round(num_bytes / took / 1e3 / peak, 3),
        )
    except Exception as error:
        emit(time=what, failed=repr(error)[-300:])


BY_ROWS = [
    replace(TUNING, few=99, outputs=outputs, unroll=unroll)
    for outputs, unroll in (
        (4, 4), (4, 2), (2, 4), (1, 8), (2, 8), (8, 2), (4, 1), (8, 1), (1, 4), (2, 2), (8, 4),
    )
]  # fmt: skip
BY_TILES = [
    replace(TUNING, few=0, tile_outputs=outputs, block=block, stages=stages, tile_warps=warps)
    for outputs, block, stages, warps in (
        (32, 256, 4, 4), (32, 128, 5, 4), (32, 256, 3, 4), (16, 256, 6, 2), (16, 256, 4, 2), (16, 512, 4, 4),
        (64, 128, 5, 4), (64, 256, 3, 4), (64, 128, 4, 8), (32, 256, 4, 2), (16, 128, 8, 1), (32, 512, 3, 8),
    )
]  # fmt: skip


def time_linear(peak: float) -> None:
    for (name, coded, tail, width), num_rows in itertools.product(FP8_SHAPES, (1, 2, 4, 16)):
        num_outputs = sum(coded) + tail
        num_bytes = sum(coded) * width + 2 * tail * width + num_rows * (width + num_outputs) * 2
        weights = [random_coded(coded, tail, width) for _ in range(6 if len(coded) > 1 else 15)]
        by_rows = {1: BY_ROWS, 2: BY_ROWS, 4: BY_ROWS, 16: []}[num_rows]
        for tuning in (*by_rows, *(BY_TILES[:3] if num_rows > 2 else ())):
            source = itertools.cycle(weights)

            def make(t=tuning, source=source, m=num_rows, n=num_outputs, k=width):
                x, y, w = randn(m, k), nans(m, n), next(source)
                return lambda: linear_fp8(None, x=x, w=w, y=y, fp8_units=True, **asdict(t))

            timed(
                {"case": f"fp8 {name}", "rows": num_rows, "t": words(tuning)}, make, num_bytes, peak
            )
    for (name, num_outputs, width), num_rows in itertools.product(BF16_SHAPES, (1, 4)):
        num_bytes = 2 * (num_outputs * width + num_rows * (width + num_outputs))
        for tuning in (*BY_ROWS[2:6], *BY_TILES[:4], BY_TILES[6]):

            def make(t=tuning, m=num_rows, n=num_outputs, k=width):
                x, y, w = randn(m, k), nans(m, n), randn(n, k)
                return lambda: linear_bf16(None, x=x, w=w, y=y, **asdict(t))

            timed(
                {"case": f"bf16 {name}", "rows": num_rows, "t": words(tuning)},
                make,
                num_bytes,
                peak,
            )


def words(tuning: Tuning) -> str:
    """What of it counts."""
    if tuning.few:
        return f"rows: {tuning.outputs} outputs, unroll {tuning.unroll}"
    return f"tiles: {tuning.tile_outputs} x {tuning.block}, {tuning.stages} stages, {tuning.tile_warps} warps"


def time_gdn(peak: float) -> None:
    for count, boundary, (columns, warps) in itertools.product(
        (1, 2, 4), (0, 1), ((32, 2), (16, 2), (32, 1), (16, 1), (64, 2))
    ):
        rows, _ = make_rows((100,) * count, 64, boundary=boundary)

        def make(rows=rows, count=count, columns=columns, warps=warps):
            operands, u, o = gdn_operands(2 * count + 1), randn(count, 12_352), nans(count, 4096)
            return lambda: gdn(
                rows,
                u=u,
                o=o,
                **operands,
                **GDN_SHAPE,
                **GDN | {"columns": columns, "warps": warps},
            )

        num_bytes = (
            count
            * (
                32 * 128 * 128 * 4 * (2 + boundary)
                + 8192 * 2 * (6 + 3 * boundary)
                + (12_352 + 4096) * 2
            )
            + 65_536
        )
        timed(
            {
                "case": "gdn",
                "rows": count,
                "boundary": boundary,
                "columns": columns,
                "warps": warps,
            },
            make,
            num_bytes,
            peak,
        )


def time_heads(peak: float) -> None:
    for count, coded, warps in itertools.product((1, 4), (False, True), (1, 2, 4)):
        rows, num_pages = make_rows((8192,) * count, 64)

        def make(rows=rows, count=count, coded=coded, warps=warps, num_pages=num_pages):
            kv = torch.zeros(2, num_pages, 64, 2, 256, dtype=torch.bfloat16, device=DEVICE).to(
                FP8 if coded else torch.bfloat16
            )
            norm = torch.ones(256, device=DEVICE)
            qkv, q = randn(count, 9216), nans(count, 4096)
            return lambda: qk_norm_rope_kv(
                rows,
                qkv=qkv,
                q=q,
                kv=kv,
                q_norm=norm,
                k_norm=norm,
                **QWEN,
                **QWEN_ROTARY,
                page_size=64,
                gated=True,
                **HEADS | {"warps": warps},
            )

        num_bytes = count * (5120 * 2 + 4096 * 2 + 1024 * (1 if coded else 2))
        timed(
            {"case": "qk_norm_rope_kv", "rows": count, "fp8": coded, "warps": warps},
            make,
            num_bytes,
            peak,
            rotate=20e6,
        )
    rows, num_pages = make_rows((8192,), 64)

    def make():
        kv = torch.zeros(2, num_pages, 64, 8, 128, dtype=torch.bfloat16, device=DEVICE)
        qkv, q = randn(1, 8192), nans(1, 6144)
        norms = torch.ones(6144, device=DEVICE), torch.ones(1024, device=DEVICE)
        return lambda: row_norm_rope_kv(
            rows,
            qkv=qkv,
            q=q,
            kv=kv,
            q_norm=norms[0],
            k_norm=norms[1],
            **MINIMAX,
            **MINIMAX_ROTARY,
            page_size=64,
            **HEADS,
        )

    timed({"case": "row_norm_rope_kv", "rows": 1}, make, 30e3, peak, rotate=20e6)


ATTENTION_VARIANTS = (
    {},
    {"stages": 4},
    {"stages": 5, "parts": 66},
    {"block": 64, "stages": 4, "parts": 66},
    {"block": 64, "stages": 4},
    {"least": 4},
    {"least": 1},
    {"columns": 64},
)


def time_attention(peak: float) -> None:
    for (name, shape, gated), lengths, coded in itertools.product(
        (("qwen", QWEN, True), ("minimax", MINIMAX, False)), TIMED_LENGTHS, (False, True)
    ):
        _, kv_heads, dim = shape.values()
        num_bytes = sum(lengths) * 2 * kv_heads * dim * (1 if coded else 2)
        made = [
            attention_operands(lengths, 64, shape, coded=coded)
            for _ in range(min(12, max(1, round(L2_BYTES / num_bytes))))
        ]
        many = lengths == (8192,) or (lengths == (131_072,) and name == "qwen")
        for changed in ATTENTION_VARIANTS if many else ATTENTION_VARIANTS[:1]:
            source = itertools.cycle(made)

            def make(changed=changed, source=source, shape=shape, gated=gated):
                rows, operands = next(source)
                return lambda: run_attention(rows, operands, shape, gated=gated, changed=changed)

            timed(
                {"case": f"attention {name}", "lengths": lengths, "fp8": coded, **changed},
                make,
                num_bytes,
                peak,
            )


def time_sample(peak: float) -> None:
    kinds = {
        "greedy": {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
        "top-p": {"temperature": 1.0, "top_k": 0, "top_p": 0.95},
        "top-k and top-p": {"temperature": 1.0, "top_k": 20, "top_p": 0.95},
    }
    for (name, kind), count in itertools.product(kinds.items(), (1, 4)):

        def make(kind=kind, count=count):
            asked, workspace = sample_operands(
                tuple(Draw(**kind, min_p=0.0, seed=3, position=row) for row in range(count))
            )
            logits, tokens = (
                randn(count, VOCABULARY, dtype=torch.float32) * 3,
                torch.zeros(count, dtype=torch.int64, device=DEVICE),
            )
            rows = SimpleNamespace(draws=asked)
            return lambda: sample(rows, logits=logits, tokens=tokens, workspace=workspace, **SAMPLE)

        timed(
            {"case": "sample", "kind": name, "rows": count},
            make,
            count * VOCABULARY * 4,
            peak,
            rotate=20e6,
        )


def time_step(peak: float) -> None:
    """The mixer halves of a step, without their norms: projections, kernels between them, projections back."""
    ins = [random_coded((8192, 4096), 64, 2048) for _ in range(30)]
    outs = [random_coded((2048,), 0, 4096) for _ in range(40)]
    qkvs = [random_coded((8192, 512, 512), 0, 2048) for _ in range(10)]
    for count, context, coded in itertools.product((1, 2, 4), (1024, 8192), (False, True)):
        lengths = (context,) * count
        h, y = randn(count, 2048), nans(count, 2048)
        u, gdn_o = nans(count, 12_352), nans(count, 4096)
        states = [gdn_operands(2 * count + 1) for _ in range(30)]
        full = [attention_operands(lengths, 64, QWEN, coded=coded) for _ in range(10)]
        norm = torch.ones(256, device=DEVICE)

        def linear_half(index, h=h, y=y, u=u, gdn_o=gdn_o, states=states, rows=full[0][0]):
            linear_fp8(rows, x=h, w=ins[index], y=u, **LINEAR)
            gdn(rows, u=u, o=gdn_o, **states[index], **GDN_SHAPE, **GDN)
            linear_fp8(rows, x=gdn_o, w=outs[index], y=y, **LINEAR)

        def full_half(index, h=h, y=y, full=full, norm=norm):
            rows, operands = full[index]
            qkv = operands["qkv"]
            linear_fp8(rows, x=h, w=qkvs[index], y=qkv, **LINEAR)
            qk_norm_rope_kv(
                rows, qkv=qkv, q=operands["q"], kv=operands["kv"], q_norm=norm, k_norm=norm, **QWEN, **QWEN_ROTARY,
                page_size=64, gated=True, **HEADS,
            )  # fmt: skip
            run_attention(rows, operands, QWEN, gated=True)
            linear_fp8(rows, x=operands["o"], w=outs[30 + index], y=y, **LINEAR)

        linear_halves = [lambda index=index, half=linear_half: half(index) for index in range(30)]
        full_halves = [lambda index=index, half=full_half: half(index) for index in range(10)]
        try:
            whole = [
                half
                for index in range(10)
                for half in (*linear_halves[3 * index : 3 * index + 3], full_halves[index])
            ]
            emit(
                step={"rows": count, "context": context, "fp8_kv": coded},
                us=round(microseconds(whole), 1),
                linear_half_us=round(microseconds(linear_halves) / 30, 2),
                full_half_us=round(microseconds(full_halves) / 10, 2),
            )
        except Exception as error:
            emit(step={"rows": count, "context": context}, failed=repr(error)[-300:])
