"""Prefill kernels of the mixers and the router under Triton's interpreter: run by `test_triton_mixer_prefill.py`.

    TRITON_INTERPRET=1 python interpreted_mixer_prefill.py CASE

The interpreter must be chosen before Triton is imported, so each run is a process of its own. It sees no races and
its products of bf16 are wrong, so 16-bit numbers are fp16 here; tests/device/mixer_prefill.py is the test of the real
thing.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from interpreted_mixer import close

from firmtoken.runtime.kernels.attention.reference import attention as reference_attention
from firmtoken.runtime.kernels.attention.triton_prefill import attention, attention_fp8
from firmtoken.runtime.kernels.batch import Batch, Segment
from firmtoken.runtime.kernels.copy.triton_pairs import copy
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.gdn.torch_recurrent import gdn as reference_gdn
from firmtoken.runtime.kernels.gdn.triton_chunk import gdn
from firmtoken.runtime.kernels.restore.triton_slots import restore
from firmtoken.runtime.kernels.route.reference import route as reference_route
from firmtoken.runtime.kernels.route.triton_tiles import route
from firmtoken.runtime.kernels.route_sigmoid.reference import (
    route_sigmoid as reference_route_sigmoid,
)
from firmtoken.runtime.kernels.route_sigmoid.triton_tiles import route_sigmoid
from firmtoken.runtime.kernels.snapshot.copy_engine import snapshot

PADDED_SEQUENCES = 2


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one sequence."""

    rows: int
    start: int = 0
    boundary: int = 0


def batches(
    parts: Sequence[Part], page_size: int = 64, *, padding: int = 0
) -> tuple[Batch, DeviceRows]:
    """The same launch for the references and for the kernels; sequence s has state slots 1 + 2 s and 2 + 2 s.

    Pages are shuffled; behind the sequences lie padded rows and padded sequences.
    """
    counts = [-(-(part.start + part.rows) // page_size) for part in parts]
    order = torch.randperm(sum(counts)) + 1
    pages = torch.zeros(len(parts) + PADDED_SEQUENCES, max(counts), dtype=torch.int32)
    segments, positions, slots, sequences, firsts = [], [], [], [], [0]
    for index, (part, own) in enumerate(zip(parts, order.split(counts), strict=True)):
        here = torch.arange(part.start, part.start + part.rows)
        pages[index, : len(own)] = own
        segments.append(
            Segment(
                first=firsts[-1],
                rows=part.rows,
                start=part.start,
                pages=own,
                live=1 + 2 * index,
                shadow=2 + 2 * index,
                boundary=part.boundary,
            )
        )
        positions += here.tolist()
        slots += (own[here // page_size] * page_size + here % page_size).tolist()
        sequences += [index] * part.rows
        firsts.append(firsts[-1] + part.rows)
    real = firsts[-1]
    spare, beyond = [0] * padding, [0] * PADDED_SEQUENCES
    batch = Batch(
        rows=real + padding,
        real_rows=real,
        token_ids=torch.zeros(real + padding, dtype=torch.int64),
        positions=torch.tensor(positions + spare),
        token_slots=torch.tensor(slots + spare),
        segments=tuple(segments),
    )
    rows = DeviceRows(
        num_rows=ints([real]),
        token_ids=batch.token_ids.int(),
        positions=batch.positions.int(),
        token_slots=batch.token_slots,
        sequences=ints([*sequences, *[-1] * padding]),
        first_rows=ints([*firsts, *[real] * PADDED_SEQUENCES]),
        starts=ints([*(part.start for part in parts), *beyond]),
        pages=pages,
        live=ints([*(s.live for s in segments), *beyond]),
        shadow=ints([*(s.shadow for s in segments), *beyond]),
        boundary=ints([*(part.boundary for part in parts), *beyond]),
    )
    return batch, rows


def ints(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def nans(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype)


def check_gdn() -> None:
    """Sequences that start anywhere, whole and short chunks, boundaries anywhere, fewer rows than taps."""
    shape = {
        "num_key_heads": 2,
        "num_value_heads": 4,
        "key_head_dim": 32,
        "value_head_dim": 16,
        "conv_kernel": 4,
        "eps": 1e-6,
    }
    channels, value_columns, heads = 192, 64, 4
    weights = {
        "conv": torch.randn(channels, 4),
        "a_log": torch.randn(heads),
        "dt_bias": torch.randn(heads) * 2,
        "norm": torch.randn(16),
    }
    for parts, padding in (
        ((Part(rows=1),), 0),
        ((Part(rows=130, start=128, boundary=64), Part(rows=2, start=63, boundary=1)), 70),
        ((Part(rows=40, start=50, boundary=30), Part(rows=64, boundary=64), Part(rows=65)), 3),
    ):
        batch, rows = batches(parts, padding=padding)
        slots = 1 + 2 * len(parts) + 1
        states = [torch.randn(slots, channels, 3), torch.randn(slots, heads, 32, 16)]
        wanted_states = [state.clone() for state in states]
        u = torch.randn(batch.rows, channels + value_columns + 2 * heads)
        # Correlated keys: the inverse is far from the identity.
        u[:, 64:128] += 1
        found, wanted = (nans(batch.rows, value_columns) for _ in range(2))
        reference_gdn(
            batch,
            u=u,
            conv_state=wanted_states[0],
            recurrent_state=wanted_states[1],
            o=wanted,
            **weights,
            **shape,
        )
        gdn(
            rows,
            u=u,
            conv_state=states[0],
            recurrent_state=states[1],
            o=found,
            workspace=nans(200_000),
            **weights,
            **shape,
            sequences=16,
            columns=16,
            stages=2,
            convolve_warps=4,
            prepare_warps=4,
            state_warps=4,
            read_warps=4,
        )
        close(found[: batch.real_rows], wanted[: batch.real_rows], 1e-4)
        assert not found[batch.real_rows :].any()
        for state, wanted_state in zip(states, wanted_states, strict=True):
            close(state, wanted_state, 1e-5)


def check_attention() -> None:
    """Prefixes and none, groups that fill a tile and not, gates, pages below and above a block, fp8.

    Wide pages for no sequence, for some, for all of them to the last page. Tokens in one part and in several.
    """
    for page_size, block, coded, fp8_units, heads, wide_pages, programs in (
        (16, 32, False, False, (6, 2), 0, 1),
        (64, 16, False, False, (8, 2), 0, 30),
        (16, 32, True, False, (8, 2), 0, 1),
        (16, 32, True, False, (8, 2), 29, 1),
        (64, 32, True, True, (6, 2), 12, 40),
    ):
        parts = (Part(rows=21, start=400), Part(rows=1, start=300), Part(rows=40))
        batch, rows = batches(parts, page_size, padding=5)
        num_pages = int(rows.pages.max()) + 1
        q_heads, kv_heads = heads
        q = torch.randn(batch.rows, q_heads * 32).half()
        qkv = torch.randn(batch.rows, (2 * q_heads + 2 * kv_heads) * 32)
        kv = torch.randn(2, num_pages, page_size, kv_heads, 32).half()
        kv[:, 0] = torch.nan  # no row may see the sentinel page
        kv = kv.to(torch.float8_e4m3fn) if coded else kv
        for gated in (False, True):
            shape = {
                "num_q_heads": q_heads,
                "num_kv_heads": kv_heads,
                "head_dim": 32,
                "gated": gated,
                "page_size": page_size,
                "scale": 32**-0.5,
            }
            found, wanted = (nans(batch.rows, q_heads * 32) for _ in range(2))
            given = qkv if gated else None
            reference_attention(batch, q=q.float(), kv=kv.float(), o=wanted, qkv=given, **shape)
            fp8 = {
                "fp8_units": fp8_units,
                "wide_tokens": wide_pages * page_size,
                "wide_block": 32,
                "wide_stages": 2,
                "q_again": fp8_units,
            }
            (attention_fp8 if coded else attention)(
                rows,
                q=q,
                kv=kv,
                o=found,
                qkv=given,
                workspace=nans(programs * 64 * 34 + wide_pages * page_size * kv_heads * 32).view(
                    torch.uint8
                ),
                **shape,
                **(fp8 if coded else {}),
                programs=programs,
                sequences=16,
                tile=64,
                block=block,
                warps=4,
                stages=2,
            )
            close(found, wanted, 2e-3)
            assert not found[batch.real_rows :].any()


def check_route() -> None:
    """Tiles that are full and not, ties, padded rows, experts and columns that are no powers of two."""
    batch, rows = batches((Part(rows=20), Part(rows=17)), padding=4)
    for num_experts, hidden_size, dtype in ((24, 96, torch.half), (32, 80, torch.float32)):
        # Small integers: sums are exact, and many experts are equal.
        h = torch.randint(-2, 3, (batch.rows, hidden_size)).to(dtype)
        router = torch.randint(-1, 2, (num_experts, hidden_size)).to(dtype)
        router[5] = router[3]
        bias = torch.randn(num_experts)
        wide = {"h": h.float(), "router": router.float(), "num_experts_per_token": 6}
        ids, wanted_ids = (torch.full((batch.rows, 6), -7, dtype=torch.int32) for _ in range(2))
        wts, wanted_wts = (nans(batch.rows, 6) for _ in range(2))
        given = {"h": h, "router": router, "ids": ids, "wts": wts, "num_experts_per_token": 6}
        tiles = {"rows": 16, "block": 32, "warps": 4, "stages": 2}
        route(rows, **given, **tiles)
        reference_route(batch, ids=wanted_ids, wts=wanted_wts, **wide)
        close(wts, wanted_wts, 1e-6)
        order = (h.float() @ router.float().T).argsort(dim=1, descending=True, stable=True)
        assert torch.equal(ids[: batch.real_rows].long(), order[: batch.real_rows, :6])
        route_sigmoid(rows, **given, bias=bias, **tiles)
        reference_route_sigmoid(batch, ids=wanted_ids, wts=wanted_wts, bias=bias, **wide)
        close(wts, wanted_wts, 1e-6)
        assert torch.equal(ids, wanted_ids)
        assert bool((ids[batch.real_rows :] == -1).all()) and not wts[batch.real_rows :].any()


def check_copy() -> None:
    """Rows by pairs, whatever the width; a pair that is none."""
    source, target = torch.randn(9, 100), nans(4, 100)
    rows = replace(batches((Part(rows=9),))[1], copies=ints([8, 1, -1, 0, 0, 3]).view(3, 2))
    copy(rows, source=source, target=target, block=64, warps=1)
    assert torch.equal(target[[1, 3]], source[[8, 0]]) and bool(target[[0, 2]].isnan().all())


def check_restore() -> None:
    """A snapshot and zeros to both slots, no move, nothing else touched; what `snapshot` wrote comes back."""
    conv_state, recurrent_state = torch.randn(9, 32, 3).half(), torch.randn(9, 2, 16, 8)
    states = {"conv_state": conv_state, "recurrent_state": recurrent_state}
    snaps = torch.full((3, 32 * 3 * 2 + 2 * 16 * 8 * 4), 255, dtype=torch.uint8)
    rows = replace(batches((Part(rows=1),))[1], moves=((5, 2), (6, 0)))
    snapshot(rows, **states, snaps=snaps)
    wanted = [conv_state.clone(), recurrent_state.clone()]
    for state in wanted:
        state[[1, 2]], state[[3, 4]] = state[5].clone(), 0
    rows = replace(rows, restores=ints([2, 1, 2, -1, -1, 0, -1, 3, 4]).view(3, 3))
    restore(rows, **states, conv_words=48, recurrent_words=256, snaps=snaps, block=64, warps=1)
    assert torch.equal(conv_state, wanted[0]) and torch.equal(recurrent_state, wanted[1])
    rows = replace(rows, restores=ints([-1, 7, 8]).view(1, 3))
    restore(rows, **states, conv_words=48, recurrent_words=256, block=64, warps=1)
    assert not conv_state[[7, 8]].any() and not recurrent_state[[7, 8]].any()


CASES: dict[str, Callable[[], Any]] = {
    "gdn": check_gdn,
    "attention": check_attention,
    "route": check_route,
    "copy": check_copy,
    "restore": check_restore,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        CASES[name]()
