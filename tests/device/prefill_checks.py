"""The products of many rows against fp32 on a GPU: for `prefill.py`."""

from collections.abc import Callable, Iterator

import torch
from moe_model import GPU, Constants, Model, poisoned
from prefill_model import BLOCKS, Linear, Prompt, coded, multiply

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BOUND = 2e-5
"""Of the sum of magnitudes, beyond the rounding of what is stored."""
GUARD = 8
"""Poisoned rows behind an output: none of them may be written."""


def decode(packed: torch.Tensor, scale: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """fp32 [N,K], by the definition of the format."""
    values = torch.tensor((*E2M1, *(-value for value in E2M1)), device=GPU)
    codes = torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)
    exact = scale.view(torch.float8_e4m3fn).float()
    return values[codes.int()] * exact.repeat_interleave(16, dim=1) * factor


def worst(got: torch.Tensor, wanted: torch.Tensor, size: torch.Tensor) -> float:
    """Largest error beyond the rounding of the stored type, over the size of what was summed."""
    error = (got.float() - wanted).abs() - 2.0**-8 * wanted.abs()
    return float((error.clamp(min=0) / size.clamp(min=1e-30)).nan_to_num(nan=float("inf")).max())


Check = tuple[str, float]


def columns_in_order(width: int) -> torch.Tensor:
    """The column at each place of operand order, by its definition: the bits qqwwdcb come as wwcbqqd."""
    column = torch.arange(width, device=GPU)
    b, c, d, w0, w1, q0, q1 = (column >> bit & 1 for bit in range(7))
    bits = enumerate((d, q0, q1, b, c, w0, w1))
    return (sum(value << bit for bit, value in bits) + (column & -128)).argsort()


def product(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x w^T, and the sum of magnitudes."""
    return x @ w.T, x.abs() @ w.abs().T


def silu_product(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    (gated, gate_size), (wide, up_size) = product(x, gate), product(x, up)
    return gated * gated.sigmoid() * wide, (1 + gated.abs()) * up_size + gate_size * (
        1 + wide.abs()
    )


def matrix(model: Model, slot: int, name: str) -> torch.Tensor:
    parts = model.arena.parts
    place = ("gate", "up", "down").index(name)
    return decode(parts[name][slot], parts[f"{name}_scale"][slot], parts["globals"][slot, place])


def check_experts(
    model: Model, num_rows: int, constants: Constants, *, mapped: bool
) -> Iterator[Check]:
    """With a map: experts anywhere in the arena, every third with another wave."""
    geo, layer = model.geometry, model.geometry.layers - 1
    v = Prompt(model, num_rows, padded=3 if num_rows > 3 else 0)
    slot_of = torch.arange(geo.experts, dtype=torch.int32, device=GPU) + layer * geo.experts
    if mapped:
        slot_of = torch.randperm(geo.layers * geo.experts, device=GPU)[: geo.experts].int()
        slot_of[::3] = -1
    by_expert = slot_of if mapped else None
    v.gate_up(layer, constants, by_expert)
    block = BLOCKS - 1
    v.down(layer, constants, block, by_expert)
    ids = v.ids.view(-1).long()
    a, rows = (torch.full_like(given, torch.nan, dtype=torch.float32) for given in (v.a, v.rows))
    a_size, rows_size = torch.ones_like(a), torch.ones_like(rows)
    a[ids < 0] = rows[ids < 0] = 0
    first = block * rows.shape[1]
    for expert in ids[ids >= 0].unique().tolist():
        if (slot := int(slot_of[expert])) >= 0:
            pairs = (ids == expert).nonzero().view(-1)
            x = v.h[pairs // geo.k].float()
            gate, up = matrix(model, slot, "gate"), matrix(model, slot, "up")
            a[pairs], a_size[pairs] = silu_product(x, gate, up)
            down = matrix(model, slot, "down")[first : first + rows.shape[1]]
            natural = v.a[pairs].float()[:, columns_in_order(geo.width).argsort()]
            rows[pairs], rows_size[pairs] = product(natural, down)
    there = (ids < 0) | (slot_of[ids.clamp(min=0)] >= 0)
    order = columns_in_order(geo.width)
    yield "gate_up", worst(v.a[there], a[there][:, order], a_size[there][:, order])
    yield "down", worst(v.rows[there], rows[there], rows_size[there])
    yield "rows of another wave", float((~v.rows[~there].isnan()).sum())


def check_shared(model: Model, num_rows: int, constants: Constants) -> Iterator[Check]:
    v, layer = Prompt(model, num_rows), model.geometry.layers - 1
    v.shared(layer, constants)
    gate_up, down = model.shared_gate_up[layer], model.shared_down[layer]
    gate, up = (
        decode(gate_up.packed[part], gate_up.scale[part], number)
        for part, number in zip(
            torch.arange(2 * model.geometry.shared, device=GPU).chunk(2),
            gate_up.globals,
            strict=True,
        )
    )
    h = v.h.float()
    a, a_size = silu_product(h, gate, up)
    w = decode(down.packed, down.scale, down.globals)
    share = (h @ model.shared_gate[layer].float().T).sigmoid()
    s, _ = product(a.bfloat16().float(), w)
    # `a` is rounded to bf16 between the halves: one number in the last place of it is another's half.
    size = (a_size + a.abs() * 2.0**-8 / BOUND) @ w.abs().T * share
    yield "shared_expert", worst(v.s, s * share, size)


def check_combine(model: Model, num_rows: int) -> Iterator[Check]:
    v = Prompt(model, num_rows)
    v.rows.normal_()
    v.s.normal_()
    hid, size = v.hid.float(), v.rows.shape[1]
    for block in (0, 2):
        columns = slice(block * size, (block + 1) * size)
        parts = v.rows.float().view(num_rows, -1, size) * v.wts.unsqueeze(2)
        hid[:, columns] += parts.sum(1) + v.s.float()[:, columns]
        v.combine(block, shared=True)
    yield "combine", worst(v.hid, hid, hid.abs() + 1)


def check_linear(linear: Linear, num_rows: int, constants: Constants) -> Iterator[Check]:
    w = coded(linear)
    x = torch.randn(num_rows, linear.width, device=GPU).bfloat16()
    whole = poisoned(num_rows + GUARD, linear.outputs + linear.tail)
    multiply(w, x, whole[:num_rows], constants)
    ends = torch.tensor((*linear.starts, linear.outputs), device=GPU)
    counts = ends.diff(prepend=ends.new_zeros(1))
    matrices = [w.codes.float() * w.scales.repeat_interleave(counts).unsqueeze(1)]
    if w.tail is not None:
        matrices.append(w.tail.float())
    wanted, size = product(x.float(), torch.cat(matrices))
    yield linear.name, worst(whole[:num_rows], wanted, size)
    yield f"{linear.name} behind", float((~whole[num_rows:].isnan()).sum())


def check_again(run: Callable[[], None], result: torch.Tensor, turns: int) -> Iterator[Check]:
    """How many of so many launches differ from the first, in any bit."""
    run()
    first = result.clone()
    different = 0
    for _ in range(turns):
        result.fill_(torch.nan)
        run()
        different += not torch.equal(result.view(torch.int16), first.view(torch.int16))
    yield "again", float(different)
