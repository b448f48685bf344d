"""Checks of `mixer_prefill.py`: prefill kernels against fp64 or fp32, each with fresh inputs and poisoned outputs."""

import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import torch
from mixer_prefill_operands import (
    ATTENTION_FORMS,
    DEVICE,
    GDN,
    MODELS,
    RESTORE,
    ROUTE_FORMS,
    Part,
    attention_operands,
    error_of,
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
from torch.nn.functional import silu, softplus

from firmtoken.runtime.kernels.add_norm.triton_rows import add_norm
from firmtoken.runtime.kernels.copy.triton_pairs import copy
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.embed.triton_gather import embed
from firmtoken.runtime.kernels.restore.triton_slots import restore
from firmtoken.runtime.kernels.snapshot.copy_engine import snapshot

Line = dict[str, object]
LENGTHS = (1, 7, 64, 108, 513, 1508, 2048, 8192)
BANK_PAGES = 2**31 // (64 * 2 * 256) + 2
"""Of Qwen's pages, so that one half of the pool has more than 2^31 elements."""


def exact_gdn(
    operands: dict[str, torch.Tensor], parts: Sequence[Part]
) -> tuple[torch.Tensor, dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """o, and recurrent and conv states by slot, fp64, row by row in the contract's words."""
    e = {name: value.double() for name, value in operands.items() if name not in ("o", "workspace")}
    found, states, windows, first = [], {}, {}, 0
    for index, part in enumerate(parts):
        live = 1 + 2 * index
        u = e["u"][first : first + part.rows]
        first += part.rows
        qkv, z, b, a = torch.split(u, [8192, 4096, 32, 32], dim=1)
        window = torch.cat((e["conv_state"][live].T, qkv))
        mixed = silu(sum(window[tap : tap + part.rows] * e["conv"][:, tap] for tap in range(4)))
        q, k, v = torch.split(mixed, [2048, 2048, 4096], dim=1)
        q, k = (x.view(-1, 16, 128) for x in (q, k))
        q, k = (x / (x.square().sum(2, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        q, k = (x.repeat_interleave(2, dim=1) for x in (q * 128**-0.5, k))
        v = v.view(-1, 32, 128)
        decay = (-e["a_log"].exp() * softplus(a + e["dt_bias"])).exp()
        strength = b.sigmoid()
        state = e["recurrent_state"][live].clone()
        heads = torch.empty(part.rows, 32, 128, dtype=torch.float64, device=DEVICE)
        for t in range(part.rows):
            state *= decay[t, :, None, None]
            change = strength[t, :, None] * (v[t] - (k[t, :, None] @ state)[:, 0])
            state += k[t, :, :, None] * change[:, None, :]
            heads[t] = (q[t, :, None] @ state)[:, 0]
            if t + 1 == part.boundary:
                states[live + 1] = state.clone()
                windows[live + 1] = window[t + 1 : t + 4].T
        states[live] = state
        windows[live] = window[part.rows : part.rows + 3].T
        out = heads / (heads.square().mean(2, keepdim=True) + 1e-6).sqrt() * e["norm"]
        found.append(out.flatten(1) * silu(z))
    return torch.cat(found), states, windows


def check_gdn() -> Iterator[Line]:
    cases = [((Part(rows=n),), 0) for n in LENGTHS[:-1]]
    cases += [
        ((Part(rows=4096, boundary=4032),), 0),
        ((Part(rows=100, boundary=64), Part(rows=1400, start=640, boundary=1344)), 13),
        (
            (
                Part(rows=548, start=1100, boundary=500),
                Part(rows=2),
                Part(rows=1498, boundary=1472),
            ),
            0,
        ),
    ]
    for (parts, padding), bias in itertools.product(cases, (0.0, 2.0)):
        rows = make_rows(parts, padding=padding)
        operands = gdn_operands(rows.positions.shape[0], 2 * len(parts) + 3, bias=bias)
        real = sum(part.rows for part in parts)
        before = {name: operands[name].clone() for name in ("conv_state", "recurrent_state")}
        wanted, states, windows = exact_gdn(operands, parts)
        run_gdn(rows, operands, GDN)
        after = {name: operands[name] for name in before}
        worst = max(error_of(after["recurrent_state"][slot], states[slot]) for slot in states)
        exact = all(
            torch.equal(after["conv_state"][slot], windows[slot].bfloat16()) for slot in windows
        )
        kept = torch.ones(2 * len(parts) + 3, dtype=torch.bool, device=DEVICE)
        kept[list(states)] = False
        untouched = all(torch.equal(after[name][kept], before[name][kept]) for name in before)
        right = exact and untouched and not operands["o"][real:].any()
        yield {
            "case": f"gdn, bias {bias}",
            "parts": [[p.start, p.rows, p.boundary] for p in parts],
            "states": worst,
            "right": right,
            "error": error_of(operands["o"][:real], wanted) if right else float("inf"),
            "bound": 2e-2,
        }
    yield from check_gdn_cuts()


def check_gdn_cuts() -> Iterator[Line]:
    """Whole, in two launches, and behind another sequence: the same bits."""
    whole = gdn_operands(2048, 5, bias=1.0)
    half = {name: value.clone() for name, value in whole.items()}
    other = {name: value.clone() for name, value in whole.items()}
    run_gdn(make_rows((Part(rows=2048),)), whole, GDN)
    for start in (0, 1024):
        part = {**half, "u": half["u"][start : start + 1024], "o": half["o"][start : start + 1024]}
        run_gdn(make_rows((Part(rows=1024, start=start),)), part, GDN)
    mixed = {**other, "u": other["u"].roll(37, 0), "o": other["o"]}
    for name in ("conv_state", "recurrent_state"):
        mixed[name][3] = mixed[name][1]
    run_gdn(make_rows((Part(rows=37), Part(rows=2011))), mixed, GDN)
    same = torch.equal(half["o"], whole["o"]) and all(
        torch.equal(half[name][1], whole[name][1]) for name in ("conv_state", "recurrent_state")
    )
    beside = torch.equal(mixed["o"][37:], whole["o"][:2011])
    right = same and beside
    yield {
        "case": "gdn cut",
        "halves": same,
        "beside": beside,
        "error": float(not right),
        "bound": 0,
    }


def exact_attention(
    rows: DeviceRows, operands: dict[str, torch.Tensor], parts: Sequence[Part], model: str
) -> torch.Tensor:
    """fp32, some rows at a time."""
    shape, gated, page_size = MODELS[model]
    q_heads, kv_heads, dim = shape.values()
    found, first = [], 0
    for index, part in enumerate(parts):
        length = part.start + part.rows
        pages = rows.pages[index, : -(-length // page_size)].long()
        keys, values = (
            operands["kv"][half]
            .view(torch.uint8)[pages]
            .view(operands["kv"].dtype)
            .float()
            .flatten(0, 1)[:length]
            .transpose(0, 1)
            for half in range(2)
        )  # [Hkv, L, D]
        for low in range(0, part.rows, 256):
            high = min(low + 256, part.rows)
            q = (
                operands["q"][first + low : first + high]
                .float()
                .view(high - low, kv_heads, -1, dim)
            )
            scores = torch.einsum("thgd,hld->htgl", q, keys) * dim**-0.5
            position = torch.arange(part.start + low, part.start + high, device=DEVICE)
            hidden = torch.arange(length, device=DEVICE) > position[:, None]
            scores.masked_fill_(hidden[None, :, None], float("-inf"))
            out = torch.einsum("htgl,hld->thgd", scores.softmax(3), values)
            found.append(out.reshape(high - low, -1))
        first += part.rows
    out = torch.cat(found)
    if gated:
        heads = operands["qkv"][:first].float().view(first, -1, dim)
        out *= heads[:, 1 : 2 * q_heads : 2].flatten(1).sigmoid()
    return out


def check_attention() -> Iterator[Line]:
    cases = [((Part(rows=n),), 0, 0) for n in (1, 7, 64, 108, 513, 1508)]
    cases += [
        ((Part(rows=2048, start=4000),), 0, BANK_PAGES),
        ((Part(rows=40, start=5000), Part(rows=1), Part(rows=700, start=64)), 11, 0),
        ((Part(rows=30, start=5000), Part(rows=1, start=12_000), Part(rows=5)), 12, 0),
    ]
    for (model, coded), (parts, padding, num_pages) in itertools.product(ATTENTION_FORMS, cases):
        if num_pages and model != "qwen":
            continue
        page_size = MODELS[model][2]
        rows = make_rows(parts, page_size, padding=padding, num_pages=num_pages)
        operands = attention_operands(rows, model, coded=coded, num_pages=num_pages)
        real = sum(part.rows for part in parts)
        wanted = exact_attention(rows, operands, parts, model)
        for form in ATTENTION_FORMS[model, coded]:
            for fp8_units in (True, False)[: 1 + (coded and form["block"] == 32)]:
                operands["o"].fill_(float("nan"))
                run_attention(rows, operands, model, form, fp8_units=fp8_units)
                right = not operands["o"][real:].any()
                yield {
                    "case": f"attention {model} {'fp8' if coded else 'bf16'}",
                    "parts": [[p.start, p.rows] for p in parts],
                    "form": [*form.values(), fp8_units],
                    "error": error_of(operands["o"][:real], wanted) if right else float("inf"),
                    "bound": 8e-3,
                }
        del operands
        torch.cuda.empty_cache()


def check_route() -> Iterator[Line]:
    """Weights against fp64; where ids differ, by no more than the logits' own rounding."""
    for num_rows, sigmoid in itertools.product(LENGTHS, (False, True)):
        padding = 3 if num_rows > 3 else 0
        rows = make_rows((Part(rows=num_rows - padding),), padding=padding)
        operands = route_operands(num_rows, 3072 if sigmoid else 2048, sigmoid=sigmoid)
        form = ROUTE_FORMS[num_rows % len(ROUTE_FORMS)]
        run_route(rows, operands, form)
        real = num_rows - padding
        ids, wts = operands["ids"][:real].long(), operands["wts"][:real]
        logits = operands["h"][:real].double() @ operands["router"].double().T
        score = logits.sigmoid() + operands["bias"].double() if sigmoid else logits
        best = score.topk(8).values
        gap = (score.gather(1, ids) - best).abs().max()
        chosen = logits.gather(1, ids)
        weights = chosen.sigmoid() if sigmoid else chosen.softmax(1)
        weights = weights / weights.sum(1, keepdim=True)
        padded = bool((operands["ids"][real:] == -1).all()) and not operands["wts"][real:].any()
        right = padded and float(gap) < 1e-4
        yield {
            "case": f"route, sigmoid {sigmoid}",
            "rows": num_rows,
            "gap": float(gap),
            "error": error_of(wts, weights) if right else float("inf"),
            "bound": 1e-5,
        }


def check_rest() -> Iterator[Line]:
    """Copies and states to the bit; rows of the decode ops' kernels at prefill's sizes."""
    source, target = randn(8192, 2048), nans(16, 2048)
    copy(
        SimpleNamespace(copies=ints([8191, 3, -1, 0, 5, 0]).view(3, 2)),
        source=source,
        target=target,
        block=1024,
        warps=4,
    )
    right = torch.equal(target[[3, 0]], source[[8191, 5]]) and bool(target[[1, 2]].isnan().all())
    yield {"case": "copy", "error": float(not right), "bound": 0}

    states = {
        "conv_state": randn(9, 8192, 3),
        "recurrent_state": randn(9, 32, 128, 128, dtype=torch.float32),
    }
    snaps = torch.zeros(3, 2_146_304, dtype=torch.uint8, pin_memory=True)
    before = {name: value.clone() for name, value in states.items()}
    snapshot(SimpleNamespace(moves=((5, 2), (6, 0))), **states, snaps=snaps)
    moves = ints([2, 1, 2, -1, 3, 4, -1, -1, 0]).view(3, 3)
    restore(SimpleNamespace(restores=moves), **states, snaps=snaps, **RESTORE)
    for value in before.values():
        value[[1, 2]], value[[3, 4]] = value[5].clone(), 0
    right = all(torch.equal(states[name], before[name]) for name in states)
    yield {"case": "restore", "error": float(not right), "bound": 0}

    for num_rows in (2048, 8192):
        rows = make_rows((Part(rows=num_rows),))
        table, hid = randn(1000, 2048), nans(num_rows, 2048)
        embed(rows, table=table, hid=hid, block=1024, warps=4)
        right = torch.equal(hid, table[rows.token_ids.long()])
        yield {"case": "embed", "rows": num_rows, "error": float(not right), "bound": 0}
        y, norm = randn(num_rows, 2048), torch.rand(2048, device=DEVICE) + 0.5
        summed = (hid.float() + y.float()).bfloat16()
        add_norm(None, hid=hid, y=y, h=y, norm=norm, eps=1e-6, warps=8, early=False)
        wide = summed.double()
        wanted = wide / (wide.square().mean(1, keepdim=True) + 1e-6).sqrt() * norm
        right = torch.equal(hid, summed)
        yield {
            "case": "add_norm",
            "rows": num_rows,
            "error": error_of(y, wanted) if right else float("inf"),
            "bound": 3e-3,
        }
