"""Operands of the mixers' decode kernels for `mixer.py`: random, poisoned, at the shapes of real models."""

import itertools
import json
from dataclasses import asdict

import torch

from firmtoken.runtime.kernels.attention.triton_split_kv import attention
from firmtoken.runtime.kernels.batch import Draw
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.launch_products import Tuning
from firmtoken.runtime.kernels.matrices import CodedMatrix
from firmtoken.runtime.kernels.sample.device_draws import DeviceDraws

FP8 = torch.float8_e4m3fn
DEVICE = "cuda"
TUNING = Tuning(
    few=2, outputs=2, unroll=4, tile_outputs=32, tile_warps=4, block=128, stages=5, early=True
)
LINEAR = {"fp8_units": True, **asdict(TUNING)}
GDN_SHAPE = {
    "num_key_heads": 16,
    "num_value_heads": 32,
    "key_head_dim": 128,
    "value_head_dim": 128,
    "conv_kernel": 4,
    "eps": 1e-6,
}
GDN = {"columns": 16, "warps": 2, "early": True}
HEADS = {"warps": 4, "early": True}
QWEN = {"num_q_heads": 16, "num_kv_heads": 2, "head_dim": 256}
QWEN_ROTARY = {"rotary_dim": 64, "rope_theta": 1e7, "eps": 1e-6}
MINIMAX = {"num_q_heads": 48, "num_kv_heads": 8, "head_dim": 128}
MINIMAX_ROTARY = {"rotary_dim": 64, "rope_theta": 5e6, "eps": 1e-6}
SMS = 132
ATTENTION = {"fp8_units": True, "block": 32, "least": 2, "columns": 32, "warps": 4, "stages": 5}
ATTENTION |= {"early": True}


# name, coded rows, bf16 rows after them, K
FP8_SHAPES = (
    ("qwen3.6 in_proj", (8192, 4096), 64, 2048),
    ("qwen3.6 qkv", (8192, 512, 512), 0, 2048),
    ("qwen3.6 out", (2048,), 0, 4096),
)
BF16_SHAPES = (("minimax qkv", 8192, 3072), ("minimax o", 3072, 6144), ("router", 256, 2048))


class Warm:
    """Which share of all cases this process takes: all, or one of `count` that compile side by side."""

    index, count, seen = 0, 1, 0

    def mine(self) -> bool:
        self.seen += 1
        return self.seen % self.count == self.index % self.count


WARM = Warm()


def emit(**line: object) -> None:
    print(json.dumps(line), flush=True)


def nans(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """||found - wanted|| / ||wanted||; infinite where a number is missing."""
    relative = (found.double() - wanted.double()).norm() / wanted.double().norm()
    return float(relative.nan_to_num(nan=float("inf")))


def random_codes(num_outputs: int, width: int) -> torch.Tensor:
    """All e4m3 codes but NaN, in the proportions of a normal distribution's."""
    return (torch.randn(num_outputs, width, device=DEVICE) * 30).clamp(-448, 448).to(FP8)


def random_coded(coded: tuple[int, ...], tail: int, width: int) -> CodedMatrix:
    starts = tuple(itertools.accumulate(coded[:-1]))
    return CodedMatrix(
        codes=random_codes(sum(coded), width),
        scales=torch.rand(len(coded), device=DEVICE) * 1e-3 + 1e-3,
        starts=starts,
        tail=randn(tail, width) * 0.03 if tail else None,
    )


def make_rows(
    lengths: tuple[int, ...], page_size: int, *, padding: int = 0, boundary: int = 0
) -> tuple[DeviceRows, int]:
    """A decode step with shuffled pages, and the pages of the pool (page 0 is the sentinel)."""
    counts = [-(-length // page_size) for length in lengths]
    num_pages = sum(counts) + 1
    order = (torch.randperm(num_pages - 1, device=DEVICE) + 1).int()
    num_rows = len(lengths) + padding
    pages = torch.full((num_rows, max(counts)), num_pages - 1, dtype=torch.int32, device=DEVICE)
    slots = [0] * num_rows
    first = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        own = order[first : first + count]
        pages[row, :count] = own
        slots[row] = int(own[(length - 1) // page_size]) * page_size + (length - 1) % page_size
        first += count
    rest = [0] * padding
    count = len(lengths)

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    positions = ints([*(length - 1 for length in lengths), *rest])
    rows = DeviceRows(
        num_rows=ints([count]),
        token_ids=ints([0] * num_rows),
        positions=positions,
        token_slots=torch.tensor(slots, device=DEVICE),
        sequences=ints([*range(count), *[-1] * padding]),
        first_rows=ints([*range(num_rows + 1)]),
        starts=positions,
        pages=pages,
        live=ints([*(1 + 2 * row for row in range(count)), *rest]),
        shadow=ints([*(2 + 2 * row for row in range(count)), *rest]),
        boundary=ints([*[boundary] * count, *rest]),
    )
    return rows, num_pages


def gdn_operands(num_slots: int) -> dict[str, torch.Tensor]:
    return {
        "conv_state": randn(num_slots, 8192, 3),
        "recurrent_state": randn(num_slots, 32, 128, 128, dtype=torch.float32) * 0.1,
        "conv": randn(8192, 4) * 0.5,
        "a_log": torch.rand(32, device=DEVICE) * 3,
        "dt_bias": torch.randn(32, device=DEVICE),
        "norm": torch.rand(128, device=DEVICE) + 0.5,
    }


def attention_operands(
    lengths: tuple[int, ...],
    page_size: int,
    shape: dict[str, int],
    *,
    coded: bool,
    padding: int = 0,
) -> tuple[DeviceRows, dict[str, torch.Tensor]]:
    rows, num_pages = make_rows(lengths, page_size, padding=padding)
    num_rows = len(lengths) + padding
    q_heads, kv_heads, dim = shape.values()
    kv = torch.empty(
        2, num_pages, page_size, kv_heads, dim, dtype=torch.bfloat16, device=DEVICE
    ).normal_()
    parts = max(num_rows, -(-2 * SMS // kv_heads))
    return rows, {
        "q": randn(num_rows, q_heads * dim) * 2,
        "qkv": randn(num_rows, (2 * q_heads + 2 * kv_heads) * dim),
        "kv": kv.to(FP8) if coded else kv,
        "o": nans(num_rows, q_heads * dim),
        "workspace": nans(parts * q_heads * (dim + 2), dtype=torch.float32),
    }


def run_attention(
    rows: DeviceRows,
    operands: dict[str, torch.Tensor],
    shape: dict[str, int],
    *,
    gated: bool,
    changed: dict[str, int | bool] | None = None,
) -> None:
    parts = operands["workspace"].numel() // (shape["num_q_heads"] * (shape["head_dim"] + 2))
    given = {name: value for name, value in operands.items() if gated or name != "qkv"}
    attention(
        rows,
        **given,
        **shape,
        gated=gated,
        page_size=operands["kv"].shape[2],
        scale=shape["head_dim"] ** -0.5,
        **{"parts": parts, **ATTENTION, **(changed or {})},
    )


VOCABULARY = 248_320
SAMPLE = {"chunk": 2048, "warps": 4, "early": True}


def sample_operands(draws: tuple[Draw, ...]) -> tuple[DeviceDraws, torch.Tensor]:
    kinds = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int64}
    fields = {
        name: torch.tensor(
            [getattr(draw, name) for draw in draws],
            dtype=kinds.get(name, torch.float32),
            device=DEVICE,
        )
        for name in DeviceDraws.__slots__
    }
    chunks = -(-VOCABULARY // int(SAMPLE["chunk"]))
    workspace = torch.full((len(draws) * (chunks * 33 + 8) + 2,), -(10**15), device=DEVICE)
    return DeviceDraws(**fields), workspace
