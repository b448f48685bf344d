"""Checks of `mixer.py`: the mixers' decode kernels against fp64."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict
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
    MINIMAX,
    MINIMAX_ROTARY,
    QWEN,
    QWEN_ROTARY,
    SAMPLE,
    TUNING,
    VOCABULARY,
    WARM,
    attention_operands,
    error_of,
    gdn_operands,
    make_rows,
    nans,
    randn,
    random_coded,
    run_attention,
    sample_operands,
)
from torch.nn.functional import rms_norm, silu, softplus

from firmtoken.runtime.kernels.batch import Batch, Draw
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.embed.triton_gather import embed
from firmtoken.runtime.kernels.gdn.triton_step import gdn
from firmtoken.runtime.kernels.linear.triton_bf16 import linear as linear_bf16
from firmtoken.runtime.kernels.linear.triton_fp8 import linear as linear_fp8
from firmtoken.runtime.kernels.matrices import CodedMatrix
from firmtoken.runtime.kernels.qk_norm_rope_kv.triton_heads import qk_norm_rope_kv
from firmtoken.runtime.kernels.row_norm_rope_kv.triton_heads import row_norm_rope_kv
from firmtoken.runtime.kernels.sample.reference import sample as reference_sample
from firmtoken.runtime.kernels.sample.triton_digits import sample

CHECKED_LENGTHS = ((8192,), (1,), (8191, 1, 130, 4097), (131_072, 33))


def exact_weights(w: CodedMatrix) -> torch.Tensor:
    num_coded = w.codes.shape[0]
    part = torch.bucketize(
        torch.arange(num_coded, device=DEVICE), torch.tensor(w.starts, device=DEVICE), right=True
    )
    weights = w.codes.float().double() * w.scales.double()[part].unsqueeze(1)
    return weights if w.tail is None else torch.cat((weights, w.tail.double()))


def check_linear() -> Iterator[dict[str, object]]:
    odd = (("odd", (16, 48), 3, 528), ("one", (1,), 0, 16))
    for (name, coded, tail, width), num_rows in itertools.product(
        (*odd, *FP8_SHAPES), (1, 2, 3, 4, 8, 13)
    ):
        w = random_coded(coded, tail, width)
        x = randn(num_rows, width + 16)[:, 8 : width + 8]
        wanted = x.double() @ exact_weights(w).T
        for fp8_units in (True, False):
            if not WARM.mine():
                continue
            y = nans(num_rows, wanted.shape[1])
            linear_fp8(None, x=x, w=w, y=y, fp8_units=fp8_units, **asdict(TUNING))
            yield {
                "case": f"fp8 {name}",
                "rows": num_rows,
                "units": fp8_units,
                "error": error_of(y, wanted),
                "bound": 3e-3,
            }
    for (name, num_outputs, width), num_rows in itertools.product(BF16_SHAPES, (1, 4, 13)):
        if not WARM.mine():
            continue
        w = randn(num_outputs, width)
        x = randn(num_rows, width)
        y = nans(num_rows, num_outputs)
        linear_bf16(None, x=x, w=w, y=y, **asdict(TUNING))
        yield {
            "case": f"bf16 {name}",
            "rows": num_rows,
            "error": error_of(y, x.double() @ w.double().T),
            "bound": 3e-3,
        }


def exact_gdn(
    u: torch.Tensor, operands: dict[str, torch.Tensor], live: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """o, conv states and recurrent states of the live slots, fp64, by the contract's words."""
    e = {name: value.double() for name, value in operands.items()}
    qkv, z, b, a = torch.split(u.double(), [8192, 4096, 32, 32], dim=1)
    window = torch.cat((e["conv_state"][live], qkv.unsqueeze(2)), dim=2)
    mixed = silu((window * e["conv"]).sum(2))
    q, k, v = torch.split(mixed, [2048, 2048, 4096], dim=1)
    q, k = (part.view(-1, 16, 128) for part in (q, k))
    q, k = (part / (part.square().sum(2, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q, k = (part.repeat_interleave(2, dim=1) for part in (q * 128**-0.5, k))
    decay = (-e["a_log"].exp() * softplus(a + e["dt_bias"])).exp()
    state = e["recurrent_state"][live] * decay[:, :, None, None]
    change = b.sigmoid().unsqueeze(2) * (
        v.view(-1, 32, 128) - torch.einsum("thkv,thk->thv", state, k)
    )
    state = state + k.unsqueeze(3) * change.unsqueeze(2)
    out = torch.einsum("thkv,thk->thv", state, q)
    out = out / (out.square().mean(2, keepdim=True) + 1e-6).sqrt() * e["norm"]
    return out.flatten(1) * silu(z), window[:, :, 1:], state


def check_gdn() -> Iterator[dict[str, object]]:
    for count, boundary in ((1, 0), (1, 1), (4, 1), (3, 0)):
        if not WARM.mine():
            continue
        rows, _ = make_rows((100,) * count, 64, padding=1, boundary=boundary)
        operands = gdn_operands(2 * count + 2)
        before = {name: value.clone() for name, value in operands.items()}
        u = randn(count + 1, 12_352)
        o = nans(count + 1, 4096)
        live, shadow = rows.live[:count].long(), rows.shadow[:count].long()
        wanted, conv_state, state = exact_gdn(u[:count], before, live)
        gdn(rows, u=u, o=o, **operands, **GDN_SHAPE, **GDN)
        found = {name: operands[name] for name in ("conv_state", "recurrent_state")}
        touched = torch.cat((live, shadow)) if boundary else live
        kept = torch.ones(2 * count + 2, dtype=torch.bool, device=DEVICE)
        kept[touched] = False
        untouched = all(torch.equal(found[name][kept], before[name][kept]) for name in found)
        worst = max(
            error_of(found["recurrent_state"][live], state),
            error_of(found["conv_state"][live], conv_state),
        )
        if boundary:
            same = all(torch.equal(found[name][live], found[name][shadow]) for name in found)
            untouched = untouched and same
        line = {"case": "gdn", "rows": count, "boundary": boundary, "states": worst, "bound": 4e-3}
        right = untouched and worst < 1e-6 and not o[count:].any()
        yield {**line, "error": error_of(o[:count], wanted) if right else float("inf")}


def exact_rotation(
    x: torch.Tensor, positions: torch.Tensor, rotary: int, theta: float
) -> torch.Tensor:
    """x [T, heads, D]; angles in fp32 as transformers computes them, the rest fp64."""
    frequency = 1.0 / theta ** (torch.arange(0, rotary, 2, dtype=torch.float32) / rotary)
    angle = (positions.float().cpu().view(-1, 1, 1) * frequency).double().to(x.device)
    half = rotary // 2
    left, right = x[..., :half], x[..., half:rotary]
    turned = (left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin())
    return torch.cat((*turned, x[..., rotary:]), dim=2)


def check_heads() -> Iterator[dict[str, object]]:
    cases = ((True, QWEN, QWEN_ROTARY), (False, QWEN, QWEN_ROTARY), (None, MINIMAX, MINIMAX_ROTARY))
    for (gated, shape, rotary), page_size, coded in itertools.product(
        cases, (16, 64), (False, True)
    ):
        if not WARM.mine():
            continue
        lengths = (131_072, 5, 8192, 77_777)
        rows, num_pages = make_rows(lengths, page_size, padding=1)
        q_heads, kv_heads, dim = shape.values()
        stride = 2 if gated else 1
        qkv = randn(5, (q_heads * stride + 2 * kv_heads) * dim) * 2
        norms = [
            torch.rand(dim * (1 if gated is not None else n), device=DEVICE) + 0.5
            for n in (q_heads, kv_heads)
        ]
        kv = torch.full((2, num_pages, page_size, kv_heads, dim), 7.0, device=DEVICE).to(
            FP8 if coded else torch.bfloat16
        )
        q = nans(5, q_heads * dim)
        given = {
            "qkv": qkv,
            "q": q,
            "kv": kv,
            "q_norm": norms[0],
            "k_norm": norms[1],
            **shape,
            **rotary,
        }
        if gated is None:
            row_norm_rope_kv(rows, **given, page_size=page_size, **HEADS)
        else:
            qk_norm_rope_kv(rows, **given, page_size=page_size, gated=gated, **HEADS)
        heads = qkv.double().view(5, -1, dim)
        parts = (
            heads[:, : q_heads * stride : stride],
            heads[:, q_heads * stride : q_heads * stride + kv_heads],
        )
        if gated is None:
            normed = [
                rms_norm(p.flatten(1), n.shape, n.double(), 1e-6).view(p.shape)
                for p, n in zip(parts, norms, strict=True)
            ]
        else:
            normed = [
                rms_norm(p, n.shape, n.double(), 1e-6) for p, n in zip(parts, norms, strict=True)
            ]
        wanted_q, wanted_k = (
            exact_rotation(p, rows.positions, rotary["rotary_dim"], rotary["rope_theta"])
            for p in normed
        )
        # Not every operation knows FP8: tokens are chosen as bytes.
        tokens = kv.view(torch.uint8).view(2, num_pages * page_size, kv_heads, -1)
        found_k, found_v = tokens[:, rows.token_slots[:4]].view(kv.dtype).float().unbind(0)
        wanted_v = heads[:4, q_heads * stride + kv_heads :]
        errors = (
            error_of(q.view(wanted_q.shape), wanted_q),
            error_of(found_k, wanted_k[:4]),
            error_of(found_v, wanted_v),
        )
        others = torch.ones(tokens.shape[1], dtype=torch.bool, device=DEVICE)
        others[rows.token_slots] = False
        untouched = bool((tokens[:, others].view(kv.dtype).float() == 7).all())
        line = {"case": "heads", "gated": gated, "page": page_size, "fp8": coded, "errors": errors}
        worst = errors[0] if coded else max(errors)
        coded_right = not coded or max(errors[1:]) < 4e-2
        yield {**line, "error": worst if untouched and coded_right else float("inf"), "bound": 3e-3}


def exact_attention(
    rows: DeviceRows,
    operands: dict[str, torch.Tensor],
    lengths: tuple[int, ...],
    shape: dict[str, int],
    *,
    gated: bool,
) -> torch.Tensor:
    q_heads, kv_heads, dim = shape.values()
    page_size = operands["kv"].shape[2]
    found = []
    for row, length in enumerate(lengths):
        pages = rows.pages[row, : -(-length // page_size)].long()
        taken = operands["kv"].view(torch.uint8)[:, pages].view(operands["kv"].dtype)
        keys, values = taken.flatten(1, 2)[:, :length].float().double().unbind(0)
        q = operands["q"][row].double().view(kv_heads, -1, dim)
        scores = torch.einsum("hgd,lhd->hgl", q, keys) * dim**-0.5
        found.append(torch.einsum("hgl,lhd->hgd", scores.softmax(2), values).reshape(q_heads, dim))
    out = torch.stack(found)
    if gated:
        gates = (
            operands["qkv"]
            .double()
            .view(operands["qkv"].shape[0], -1, dim)[: len(lengths), 1 : 2 * q_heads : 2]
        )
        out = out * gates.sigmoid()
    return out.flatten(1)


def check_attention() -> Iterator[dict[str, object]]:
    for (shape, gated), page_size, lengths, kind in itertools.product(
        ((QWEN, True), (MINIMAX, False)), (16, 64), CHECKED_LENGTHS, ("bf16", "fp8", "fp8_bits")
    ):
        if not WARM.mine():
            continue
        coded = kind != "bf16"
        rows, operands = attention_operands(lengths, page_size, shape, coded=coded, padding=1)
        run_attention(rows, operands, shape, gated=gated, changed={"fp8_units": kind != "fp8_bits"})
        count = len(lengths)
        wanted = exact_attention(rows, operands, lengths, shape, gated=gated)
        found = operands["o"]
        line = {
            "case": "attention",
            "shape": shape,
            "page": page_size,
            "lengths": lengths,
            "kind": kind,
            "bound": 6e-3,
        }
        yield {
            **line,
            "error": error_of(found[:count], wanted) if not found[count:].any() else float("inf"),
        }


def check_sample() -> Iterator[dict[str, object]]:
    """The reference's token but for the draws in a million where fp32 weights decide; 4 x 16 draws."""
    for spread in (1.0, 3.0, 8.0):
        if not WARM.mine():
            continue
        draws = tuple(
            Draw(
                temperature=(1.0, 0.6, 0.0, 1.0)[row % 4],
                top_p=(0.95, 0.8, 1.0)[row % 3],
                top_k=(20, 0, 40, 0, 1)[row % 5],
                min_p=(0.0, 0.05)[row % 2],
                seed=row * 2**33 + 5,
                position=1000 + row,
            )
            for row in range(16)
        )
        logits = randn(16, VOCABULARY, dtype=torch.float32) * spread
        logits[8:] = logits[8:].bfloat16().float()
        wanted = torch.full((16,), -7)
        empty = torch.zeros(0, dtype=torch.int64)
        batch = Batch(
            rows=16,
            real_rows=16,
            token_ids=empty,
            positions=empty,
            token_slots=empty,
            segments=(),
            draws=draws,
        )
        reference_sample(batch, logits=logits.cpu(), tokens=wanted)
        found = torch.full((16,), -8, device=DEVICE)
        asked, workspace = sample_operands(draws)
        sample(
            SimpleNamespace(draws=asked), logits=logits, tokens=found, workspace=workspace, **SAMPLE
        )
        differ = int((found.cpu() != wanted).sum())
        yield {"case": "sample", "spread": spread, "error": differ, "bound": 0}
    if WARM.mine():
        table = randn(1000, 2048)
        rows, _ = make_rows((5, 9), 16)
        rows.token_ids.copy_(torch.tensor((999, 3)))
        hid = nans(2, 2048)
        embed(rows, table=table, hid=hid, block=1024, warps=4)
        same = torch.equal(hid, table[rows.token_ids.long()])
        yield {"case": "embed", "error": float(not same), "bound": 0}
