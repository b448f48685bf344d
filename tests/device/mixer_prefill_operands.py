"""Operands and forms of the prefill kernels for `mixer_prefill.py`: random, poisoned, at the shapes of real models."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from firmtoken.runtime.kernels.attention.triton_prefill import attention, attention_fp8
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.gdn.triton_chunk import gdn
from firmtoken.runtime.kernels.route.triton_tiles import route
from firmtoken.runtime.kernels.route_sigmoid.triton_tiles import route_sigmoid

DEVICE = "cuda"
FP8 = torch.float8_e4m3fn
SEQUENCES = 16
Launch = Callable[[], None]

GDN_SHAPE = {
    "num_key_heads": 16,
    "num_value_heads": 32,
    "key_head_dim": 128,
    "value_head_dim": 128,
    "conv_kernel": 4,
    "eps": 1e-6,
}
GDN = {
    "columns": 32,
    "stages": 3,
    "convolve_warps": 8,
    "prepare_warps": 4,
    "state_warps": 4,
    "read_warps": 8,
}
GDN_FORMS = (
    GDN,
    {**GDN, "columns": 16},
    {**GDN, "columns": 64},
    {**GDN, "stages": 2},
    {**GDN, "state_warps": 8},
    {**GDN, "convolve_warps": 4},
    {**GDN, "prepare_warps": 8},
    {**GDN, "read_warps": 4},
)
QWEN = {"num_q_heads": 16, "num_kv_heads": 2, "head_dim": 256}
MINIMAX = {"num_q_heads": 48, "num_kv_heads": 8, "head_dim": 128}
MODELS = {"qwen": (QWEN, True, 64), "minimax": (MINIMAX, False, 16)}


PROGRAMS = 132


NOT_WIDE = {"wide_tokens": 0, "wide_block": 0, "wide_stages": 0}


def tiling(tile: int, block: int, warps: int, stages: int) -> dict[str, int]:
    return {"tile": tile, "block": block, "warps": warps, "stages": stages, "programs": PROGRAMS}


def wide(tokens: int, tile: int, block: int, stages: int) -> dict[str, int]:
    """FP8 pages widened before, so many tokens of them; `block` and `stages` are for the others."""
    own = tiling(tile, block, 8, stages)
    return {**own, "wide_tokens": tokens, "wide_block": 64, "wide_stages": 2}


ATTENTION_FORMS = {
    ("qwen", False): (
        tiling(128, 64, 8, 2),
        tiling(64, 64, 8, 2),
        tiling(128, 32, 8, 3),
        tiling(64, 64, 4, 2),
        tiling(64, 32, 8, 2),
    ),
    ("qwen", True): (
        wide(36_928, 128, 32, 1),
        wide(1024, 128, 32, 1),
        tiling(64, 64, 8, 2),
        tiling(64, 32, 8, 2),
    ),
    ("minimax", False): (tiling(128, 64, 8, 3), tiling(128, 32, 8, 3)),
    ("minimax", True): (
        wide(32_768, 128, 64, 2),
        wide(1024, 128, 64, 2),
        tiling(128, 64, 8, 3),
        tiling(128, 32, 8, 3),
        tiling(64, 64, 4, 3),
    ),
}
ROUTE_FORMS = (
    {"rows": 16, "block": 64, "warps": 4, "stages": 3},
    {"rows": 16, "block": 128, "warps": 4, "stages": 2},
    {"rows": 32, "block": 64, "warps": 4, "stages": 3},
    {"rows": 64, "block": 64, "warps": 8, "stages": 3},
    {"rows": 16, "block": 64, "warps": 8, "stages": 3},
)

RESTORE = {"conv_words": 12_288, "recurrent_words": 524_288, "block": 4096, "warps": 8}


def emit(**line: object) -> None:
    print(json.dumps(line), flush=True)


def nans(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """||found - wanted|| / ||wanted||; infinite where a number is missing."""
    relative = (found.double() - wanted.double()).norm() / wanted.double().norm()
    return float(relative.nan_to_num(nan=float("inf")))


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one sequence."""

    rows: int
    start: int = 0
    boundary: int = 0


def make_rows(
    parts: Sequence[Part], page_size: int = 64, *, padding: int = 0, num_pages: int = 0
) -> DeviceRows:
    """A prefill launch over pages anywhere in a pool (page 0 is the sentinel), all SEQUENCES of the plan described.

    Sequence s has state slots 1 + 2 s and 2 + 2 s.
    """
    counts = [-(-(part.start + part.rows) // page_size) for part in parts]
    num_pages = num_pages or sum(counts) + 1
    order = (torch.randperm(num_pages - 1, device=DEVICE)[: sum(counts)] + 1).int()
    pages = torch.zeros(SEQUENCES, max(counts), dtype=torch.int32, device=DEVICE)
    positions, slots, sequences, firsts = [], [], [], [0]
    for index, (part, own) in enumerate(zip(parts, order.split(counts), strict=True)):
        here = torch.arange(part.start, part.start + part.rows, device=DEVICE)
        pages[index, : len(own)] = own
        positions.append(here.int())
        slots.append(own[here // page_size].long() * page_size + here % page_size)
        sequences.append(torch.full_like(here, index).int())
        firsts.append(firsts[-1] + part.rows)
    count, real = len(parts), firsts[-1]
    spare = torch.zeros(padding, dtype=torch.int32, device=DEVICE)
    beyond = [0] * (SEQUENCES - count)
    return DeviceRows(
        num_rows=ints([real]),
        token_ids=torch.randint(0, 1000, (real + padding,), dtype=torch.int32, device=DEVICE),
        positions=torch.cat((*positions, spare)),
        token_slots=torch.cat((*slots, spare.long())),
        sequences=torch.cat((*sequences, spare - 1)),
        first_rows=ints([*firsts, *[real] * (SEQUENCES - count)]),
        starts=ints([*(part.start for part in parts), *beyond]),
        pages=pages,
        live=ints([*(1 + 2 * index for index in range(count)), *beyond]),
        shadow=ints([*(2 + 2 * index for index in range(count)), *beyond]),
        boundary=ints([*(part.boundary for part in parts), *beyond]),
    )


def gdn_operands(num_rows: int, num_slots: int, *, bias: float = 0.0) -> dict[str, torch.Tensor]:
    """`bias` on the inputs of the keys makes them alike, so that the inverse is far from the identity."""
    u = torch.randn(num_rows, 12_352, device=DEVICE)
    u[:, 2048:4096] += bias
    chunks = -(-num_rows // 64) + 2 * SEQUENCES
    elements = chunks * 32 * 128 * 128 + num_rows * (2 * 2048 + 2 * 4096)
    return {
        "u": u.bfloat16(),
        "o": nans(num_rows, 4096),
        "conv_state": randn(num_slots, 8192, 3),
        "recurrent_state": randn(num_slots, 32, 128, 128, dtype=torch.float32) * 0.1,
        "conv": randn(8192, 4) * 0.5,
        "a_log": torch.rand(32, device=DEVICE) * 3,
        "dt_bias": torch.randn(32, device=DEVICE) * 2 - 3,
        "norm": torch.rand(128, device=DEVICE) + 0.5,
        "workspace": nans(elements // 2 + 32 * num_rows, dtype=torch.float32),
    }


def run_gdn(rows: DeviceRows, operands: dict[str, torch.Tensor], form: dict[str, int]) -> None:
    gdn(rows, **operands, **GDN_SHAPE, sequences=SEQUENCES, **form)


def attention_operands(
    rows: DeviceRows, model: str, *, coded: bool, num_pages: int = 0
) -> dict[str, torch.Tensor]:
    """Only the pages of `rows` hold numbers."""
    shape, _, page_size = MODELS[model]
    q_heads, kv_heads, dim = shape.values()
    num_rows = rows.positions.shape[0]
    num_pages = num_pages or int(rows.pages.max()) + 1
    dtype = FP8 if coded else torch.bfloat16
    kv = torch.empty(2, num_pages, page_size, kv_heads, dim, dtype=dtype, device=DEVICE)
    raw = kv.view(torch.uint8)
    raw[:, 0] = 0x7F
    used = rows.pages.flatten().unique().long()
    used = used[used > 0]
    for half in range(2):
        numbers = torch.randn(len(used), page_size, kv_heads, dim, device=DEVICE).to(dtype)
        raw[half, used] = numbers.view(torch.uint8)
    return {
        "q": randn(num_rows, q_heads * dim) * 2,
        "qkv": randn(num_rows, (2 * q_heads + 2 * kv_heads) * dim),
        "kv": kv,
        "o": nans(num_rows, q_heads * dim),
    }


def attention_workspace(
    operands: dict[str, torch.Tensor], model: str, form: dict[str, int]
) -> torch.Tensor:
    """Poisoned, made once for operands and a form."""
    _, kv_heads, dim = MODELS[model][0].values()
    elements = form["programs"] * form["tile"] * (dim + 2) * 2
    elements += 2 * form.get("wide_tokens", 0) * kv_heads * dim
    found = operands.get("workspace")
    if found is None or found.numel() != 2 * elements:
        found = operands["workspace"] = nans(elements).view(torch.uint8)
    return found


def run_attention(
    rows: DeviceRows,
    operands: dict[str, torch.Tensor],
    model: str,
    form: dict[str, int],
    *,
    fp8_units: bool = True,
) -> None:
    shape, gated, page_size = MODELS[model]
    given = {name: value for name, value in operands.items() if gated or name != "qkv"}
    given["workspace"] = attention_workspace(operands, model, form)
    coded = operands["kv"].dtype == FP8
    fp8 = {"fp8_units": fp8_units, "q_again": False, **NOT_WIDE}
    (attention_fp8 if coded else attention)(
        rows,
        **given,
        **shape,
        gated=gated,
        page_size=page_size,
        scale=shape["head_dim"] ** -0.5,
        sequences=SEQUENCES,
        **{**(fp8 if coded else {}), **form},
    )


def route_operands(num_rows: int, hidden_size: int, *, sigmoid: bool) -> dict[str, Any]:
    """Of Qwen3.6 (softmax) or MiniMax (sigmoid)."""
    more = {"bias": torch.randn(256, device=DEVICE)} if sigmoid else {}
    return {
        "h": randn(num_rows, hidden_size),
        "router": randn(256, hidden_size) * hidden_size**-0.5,
        "ids": torch.full((num_rows, 8), -7, dtype=torch.int32, device=DEVICE),
        "wts": nans(num_rows, 8, dtype=torch.float32),
        **more,
    }


def run_route(rows: DeviceRows, operands: dict[str, Any], form: dict[str, int]) -> None:
    call = route_sigmoid if "bias" in operands else route
    call(rows, **operands, num_experts_per_token=8, **form)
