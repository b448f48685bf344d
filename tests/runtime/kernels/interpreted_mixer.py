"""Decode kernels of the mixers under Triton's interpreter against the references: run by `test_triton_mixer.py`.

    TRITON_INTERPRET=1 python interpreted_mixer.py CASE

The interpreter must be chosen before Triton is imported, so each run is a process of its own. It sees no races and
its products of bf16 are wrong, so keys and values are fp16 here; tests/device/mixer.py is the test of the real thing.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict, replace

import torch

from firmtoken.runtime.kernels.attention.reference import attention as reference_attention
from firmtoken.runtime.kernels.attention.triton_split_kv import attention
from firmtoken.runtime.kernels.batch import Batch, Draw, Segment
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.embed.triton_gather import embed
from firmtoken.runtime.kernels.gdn.torch_recurrent import gdn as reference_gdn
from firmtoken.runtime.kernels.gdn.triton_step import gdn
from firmtoken.runtime.kernels.linear.launch_products import Tuning
from firmtoken.runtime.kernels.linear.triton_bf16 import linear as linear_bf16
from firmtoken.runtime.kernels.linear.triton_fp8 import linear as linear_fp8
from firmtoken.runtime.kernels.matrices import CodedMatrix
from firmtoken.runtime.kernels.qk_norm_rope_kv.reference import (
    qk_norm_rope_kv as reference_qk_norm,
)
from firmtoken.runtime.kernels.qk_norm_rope_kv.triton_heads import qk_norm_rope_kv
from firmtoken.runtime.kernels.row_norm_rope_kv.reference import (
    row_norm_rope_kv as reference_row_norm,
)
from firmtoken.runtime.kernels.row_norm_rope_kv.triton_heads import row_norm_rope_kv
from firmtoken.runtime.kernels.sample.device_draws import DeviceDraws
from firmtoken.runtime.kernels.sample.reference import sample as reference_sample
from firmtoken.runtime.kernels.sample.triton_digits import sample

NUM_PAGES = 24


def batches(
    lengths: tuple[int, ...], page_size: int, *, padding: int = 1, boundary: tuple[int, ...] = ()
) -> tuple[Batch, DeviceRows]:
    """The same decode step for the references and for the kernels; sequence s has state slots 1 + 2 s and 2 + 2 s."""
    num_rows = len(lengths) + padding
    most = -(-max(lengths) // page_size)
    order = torch.randperm(NUM_PAGES - 1) + 1
    pages = torch.full((num_rows, most), NUM_PAGES - 1, dtype=torch.int32)
    segments, slots, first_page = [], [], 0
    for row, length in enumerate(lengths):
        count = -(-length // page_size)
        own = order[first_page : first_page + count]
        first_page += count
        pages[row, :count] = own.int()
        slots.append(int(own[(length - 1) // page_size]) * page_size + (length - 1) % page_size)
        segments.append(
            Segment(
                first=row,
                rows=1,
                start=length - 1,
                pages=own,
                live=1 + 2 * row,
                shadow=2 + 2 * row,
                boundary=boundary[row] if boundary else 0,
            )
        )
    rest = (0,) * padding
    positions = (*(length - 1 for length in lengths), *rest)
    token_ids = torch.zeros(num_rows, dtype=torch.int64)
    batch = Batch(
        rows=num_rows,
        real_rows=len(lengths),
        token_ids=token_ids,
        positions=torch.tensor(positions),
        token_slots=torch.tensor((*slots, *rest)),
        segments=tuple(segments),
    )
    rows = DeviceRows(
        num_rows=torch.tensor([len(lengths)], dtype=torch.int32),
        token_ids=token_ids.int(),
        positions=torch.tensor(positions, dtype=torch.int32),
        token_slots=torch.tensor((*slots, *rest)),
        sequences=torch.tensor((*range(len(lengths)), *(-1,) * padding), dtype=torch.int32),
        first_rows=torch.arange(num_rows + 1, dtype=torch.int32),
        starts=torch.tensor(positions, dtype=torch.int32),
        pages=pages,
        live=torch.tensor((*(s.live for s in segments), *rest), dtype=torch.int32),
        shadow=torch.tensor((*(s.shadow for s in segments), *rest), dtype=torch.int32),
        boundary=torch.tensor((*(s.boundary for s in segments), *rest), dtype=torch.int32),
    )
    return batch, rows


def close(found: torch.Tensor, wanted: torch.Tensor, bound: float) -> None:
    """Every number there, and none further off than `bound` times the largest."""
    error = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max()
    assert error <= bound, f"{error} > {bound}"


def check_linear() -> None:
    """Joined parts with their own scales, a tail in 16 bits, codes of all kinds, odd rows; both ways to decode."""
    width = 528
    tuning = Tuning(
        few=3, outputs=2, unroll=2, tile_outputs=4, tile_warps=1, block=64, stages=2, early=False
    )
    codes = torch.randint(0, 254, (44, width), dtype=torch.int32)
    codes = (codes + (codes >= 127)).to(torch.uint8).view(torch.float8_e4m3fn)
    for num_rows, dtype in (
        (1, torch.bfloat16),
        (3, torch.bfloat16),
        (4, torch.half),
        (17, torch.half),
    ):
        w = CodedMatrix(
            codes=codes,
            scales=torch.rand(3) + 0.5,
            starts=(5, 23),
            tail=torch.randn(3, width).to(dtype),
        )
        part = torch.bucketize(torch.arange(44), torch.tensor(w.starts), right=True)
        coded = codes.double() * w.scales.double()[part].unsqueeze(1)
        assert w.tail is not None
        x = torch.randn(num_rows, width + 16).to(dtype)[:, 8 : width + 8]
        for fp8_units in (False, True):
            y = torch.full((num_rows, 47), torch.nan)
            linear_fp8(None, x=x, w=w, y=y, fp8_units=fp8_units, **asdict(tuning))
            close(y, x.double() @ torch.cat((coded, w.tail.double())).T, 1e-6)
        y = torch.full((num_rows, 3), torch.nan)
        linear_bf16(None, x=x, w=w.tail, y=y, **asdict(tuning))
        close(y, x.double() @ w.tail.double().T, 1e-6)


def check_gdn() -> None:
    """Two steps, live and shadow states, a padded row."""
    shape = {
        "num_key_heads": 2,
        "num_value_heads": 4,
        "key_head_dim": 32,
        "value_head_dim": 16,
        "conv_kernel": 4,
        "eps": 1e-6,
    }
    channels, value_columns, heads = 192, 64, 4
    states = [torch.randn(7, channels, 3), torch.randn(7, heads, 32, 16)]
    # What the kernel keeps is bf16: numbers that bf16 has.
    states[0] = states[0].bfloat16().float()
    wanted_states = [state.clone() for state in states]
    weights = {
        "conv": torch.randn(channels, 4),
        "a_log": torch.randn(heads),
        "dt_bias": torch.randn(heads) * 4,
        "norm": torch.randn(16),
    }
    for boundary in ((0, 1, 0), (1, 0, 0)):
        batch, rows = batches((5, 9, 2), 4, boundary=boundary)
        u = torch.randn(4, channels + value_columns + 2 * heads).bfloat16().float()
        found, wanted = (torch.full((4, value_columns), torch.nan) for _ in range(2))
        gdn(
            rows,
            u=u,
            conv_state=states[0],
            recurrent_state=states[1],
            o=found,
            **weights,
            **shape,
            columns=8,
            warps=4,
            early=False,
        )
        reference_gdn(
            batch,
            u=u,
            conv_state=wanted_states[0],
            recurrent_state=wanted_states[1],
            o=wanted,
            **weights,
            **shape,
        )
        close(found, wanted, 2e-5)
        for state, wanted_state in zip(states, wanted_states, strict=True):
            close(state, wanted_state, 1e-6)


def check_heads() -> None:
    """Queries and pages of both ops; positions far out; fp32 pages, and fp8 ones but for the rounding of fp32."""
    heads = {"num_q_heads": 6, "num_kv_heads": 2, "head_dim": 32, "rotary_dim": 16}
    shape = {**heads, "rope_theta": 1e7, "eps": 1e-6, "page_size": 4}
    batch, rows = batches((5, 9, 2), 4)
    far = torch.tensor((131_071, 77_777, 1, 0))
    batch.positions.copy_(far)
    rows.positions.copy_(far)
    for gated, whole_row in ((True, False), (False, False), (False, True)):
        columns = (6 * (2 if gated else 1) + 4) * 32
        qkv = torch.randn(4, columns) * 3
        q_norm, k_norm = (torch.randn(32 * (count if whole_row else 1)) for count in (6, 2))
        more = {} if whole_row else {"gated": gated}
        kernel, reference = (
            (row_norm_rope_kv, reference_row_norm)
            if whole_row
            else (qk_norm_rope_kv, reference_qk_norm)
        )
        q, wanted_q = (torch.full((4, 192), torch.nan) for _ in range(2))
        kv, wanted_kv = (torch.full((2, NUM_PAGES, 4, 2, 32), 7.0) for _ in range(2))
        given = {"qkv": qkv, "q_norm": q_norm, "k_norm": k_norm, **shape, **more}
        reference(batch, q=wanted_q, kv=wanted_kv, **given)
        kernel(rows, q=q, kv=kv, **given, warps=1, early=False)
        close(q, wanted_q, 2e-6)
        close(kv, wanted_kv, 2e-6)
        coded = torch.full(kv.shape, 7.0).to(torch.float8_e4m3fn)
        kernel(rows, q=q, kv=coded, **given, warps=1, early=False)
        wanted_codes = wanted_kv.to(torch.float8_e4m3fn).view(torch.uint8).int()
        differ = coded.view(torch.uint8).int() != wanted_codes
        assert differ.float().mean() < 0.001, differ.sum()


def check_encode() -> None:
    """Codes, what lies between them, far smaller and larger, infinities and NaN, as a value that goes to its page."""
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    rest = torch.tensor((1e-30, 449.0, 463.9, 464.1, 1e30, torch.inf, torch.nan))
    near = torch.cat((codes, middles, middles * (1 + 2**-20), middles * (1 - 2**-20), rest))
    numbers = torch.cat((near, -near))
    numbers = torch.cat((numbers, numbers[: -len(numbers) % 32]))
    values = numbers.view(-1, 32)
    num_rows = values.shape[0]
    rows = batches((1,), 4, padding=num_rows - 1)[1]
    rows = replace(rows, token_slots=torch.arange(num_rows))
    kv = torch.zeros(2, num_rows, 1, 1, 32).to(torch.float8_e4m3fn)
    ones = torch.ones(32)
    qk_norm_rope_kv(
        rows,
        qkv=torch.cat((torch.ones(num_rows, 64), values), dim=1),
        q=torch.empty(num_rows, 32),
        kv=kv,
        q_norm=ones,
        k_norm=ones,
        num_q_heads=1,
        num_kv_heads=1,
        head_dim=32,
        rotary_dim=16,
        rope_theta=1e4,
        eps=1e-6,
        gated=False,
        page_size=1,
        warps=1,
        early=False,
    )
    wanted = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    found = kv[1].view(num_rows, 32)
    assert torch.equal(found.float().isnan(), values.isnan())
    same = found.view(torch.uint8) == wanted.view(torch.uint8)
    assert bool((same | values.isnan()).all())


def check_attention() -> None:
    """Sequences of very different lengths, parts that are used and not, gates, pages below and above a block, fp8."""
    for page_size, block, coded, fp8_units in (
        (4, 16, False, False),
        (32, 16, False, False),
        (4, 16, True, False),
        (32, 16, True, True),
    ):
        lengths = (45, 1, 16) if page_size == 4 else (100, 1, 32)
        batch, rows = batches(lengths, page_size)
        q = torch.randn(4, 6 * 32).half()
        qkv = torch.randn(4, (12 + 4) * 32)
        kv = torch.randn(2, NUM_PAGES, page_size, 2, 32).half()
        kv = kv.to(torch.float8_e4m3fn) if coded else kv
        for gated in (False, True):
            shape = {
                "num_q_heads": 6,
                "num_kv_heads": 2,
                "head_dim": 32,
                "gated": gated,
                "page_size": page_size,
                "scale": 32**-0.5,
            }
            found, wanted = (torch.full((4, 192), torch.nan) for _ in range(2))
            given = qkv if gated else None
            reference_attention(batch, q=q.float(), kv=kv.float(), o=wanted, qkv=given, **shape)
            attention(
                rows,
                q=q,
                kv=kv,
                o=found,
                qkv=given,
                workspace=torch.full((5 * 6 * 34,), torch.nan),
                **shape,
                fp8_units=fp8_units,
                parts=5,
                block=block,
                least=1,
                columns=16,
                warps=1,
                stages=2,
                early=False,
            )
            close(found, wanted, 2e-3)
            assert not found[3].any()


def check_sample() -> None:
    """Every kind of draw, ties at both thresholds, rows that are no numbers; chunks that are full and not."""
    width, num_rows, chunk = 600, 14, 256
    logits = torch.randn(num_rows, width) * 3
    logits[7:12] = logits[7:12].round()
    logits[5, 500], logits[6] = torch.nan, -torch.inf
    logits[4, 3] = torch.inf
    draws = tuple(
        Draw(
            temperature=(0.0, 1.0, 0.6)[row % 3],
            top_p=(1.0, 0.9, 0.5, 1e-9)[row % 4],
            top_k=(0, 20, 1, 600, 7)[row % 5],
            min_p=(0.0, 0.0, 0.1)[row // 5],
            seed=(7 << 40) + row,
            position=(5 << 32) + 3 * row,
        )
        for row in range(num_rows)
    )
    batch, rows = batches((1,), 64)
    wanted, found = (torch.full((num_rows,), -7) for _ in range(2))
    reference_sample(replace(batch, draws=draws), logits=logits, tokens=wanted)
    chunks = -(-width // chunk)
    workspace = torch.full((num_rows * (chunks * 33 + 8) + 2,), -(10**15))
    sample(
        replace(rows, draws=device_draws(draws)),
        logits=logits,
        tokens=found,
        workspace=workspace,
        chunk=chunk,
        warps=4,
        early=False,
    )
    assert found.tolist() == wanted.tolist()


def device_draws(draws: tuple[Draw, ...]) -> DeviceDraws:
    """The same as tensors."""
    kinds = {"top_k": torch.int32, "seed": torch.int64, "position": torch.int64}
    return DeviceDraws(
        **{
            name: torch.tensor(
                [getattr(draw, name) for draw in draws], dtype=kinds.get(name, torch.float32)
            )
            for name in DeviceDraws.__slots__
        }
    )


def check_embed() -> None:
    """Rows of the table, whatever the width."""
    rows = batches((5, 9, 2), 4)[1]
    rows.token_ids.copy_(torch.tensor((3, 0, 9, 3)))
    table, hid = torch.randn(10, 100), torch.full((4, 100), torch.nan)
    embed(rows, table=table, hid=hid, block=64, warps=1)
    assert torch.equal(hid, table[rows.token_ids.long()])


CASES: dict[str, Callable[[], None]] = {
    "linear": check_linear,
    "gdn": check_gdn,
    "heads": check_heads,
    "encode": check_encode,
    "attention": check_attention,
    "sample": check_sample,
    "embed": check_embed,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        CASES[name]()
