"""The kernels of a layer's experts against fp64 on a GPU: for `moe.py`."""

from collections.abc import Callable, Iterator

import torch
from moe_model import EPS, GPU, Launches, Model, Values

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode(packed: torch.Tensor, scale: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """fp64 [N,K], by the definition of the format."""
    values = torch.tensor((*E2M1, *(-value for value in E2M1)), dtype=torch.float64, device=GPU)
    wide = packed.long()
    codes = torch.stack((wide & 15, wide >> 4), dim=2).flatten(1)
    exact = scale.view(torch.float8_e4m3fn).float().double()
    return values[codes] * exact.repeat_interleave(16, dim=1) * factor.double()


def slot_matrix(model: Model, slot: int, name: str) -> torch.Tensor:
    parts = model.arena.parts
    place = ("gate", "up", "down").index(name)
    return decode(parts[name][slot], parts[f"{name}_scale"][slot], parts["globals"][slot, place])


def silu_product(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate * gate.sigmoid() * up


def worst(got: torch.Tensor, wanted: torch.Tensor, size: torch.Tensor) -> float:
    """Largest error beyond the rounding of the stored type, over the size of what was summed."""
    rounding = 2.0**-8 if got.dtype == torch.bfloat16 else 0.0
    error = (got.double() - wanted).abs() - rounding * wanted.abs()
    return float((error.clamp(min=0) / size.clamp(min=1e-30)).nan_to_num(nan=float("inf")).max())


Check = tuple[str, float, float]
"""What, largest error, bound."""


def check_norm_and_route(model: Model, launch: Launches, real: int) -> Iterator[Check]:
    v, layer = launch.values, model.geometry.layers - 1
    before = v.hid.clone()
    hid = (before.float() + v.y.float()).bfloat16()
    launch.add_norm(layer)
    scale = (hid.double().pow(2).mean(1, keepdim=True) + EPS).rsqrt()
    h = hid.double() * scale * model.norms[layer].double()
    yield "add_norm hid", float((v.hid != hid).sum()), 0.5
    yield "add_norm h", worst(v.h, h, h.abs()), 1e-5
    yield from check_route(model, launch, real, launch.route)
    v.h.fill_(torch.nan)
    for _ in range(2):
        v.hid.copy_(before)
        launch.add_norm_route(layer)
    yield "add_norm_route hid", float((v.hid != hid).sum()), 0.5
    yield "add_norm_route h", worst(v.h, h, h.abs()), 1e-5
    v.hid.copy_(before)
    yield from check_route(model, launch, real, launch.add_norm_route)


def check_route(
    model: Model, launch: Launches, real: int, run: Callable[[int], None]
) -> Iterator[Check]:
    v, geo, layer = launch.values, model.geometry, model.geometry.layers - 1
    softmax = geo.shared > 0
    logits = v.h.double() @ model.routers[layer].double().T
    score = logits if softmax else logits.sigmoid() + model.bias.double()
    hid = v.hid.clone()
    for turn in range(2):  # twice: the count of arrivals must be back at 0
        v.hid.copy_(hid)
        v.ids.fill_(12_345)
        v.wts.fill_(torch.nan)
        run(layer)
        yield f"{run.__name__} arrivals {turn}", float(v.arrived.abs().sum()), 0.5
    chosen = v.ids.long().clamp(0, geo.experts - 1)
    least = score.gather(1, chosen)[:real].min(dim=1).values
    best = score.topk(geo.k).values[:real, -1]
    distinct = all(len(set(row)) == geo.k for row in v.ids[:real].tolist())
    in_range = bool((v.ids[:real] == chosen[:real]).all())
    missed = float((best - least).max()) if distinct and in_range else 9.9
    yield f"{run.__name__} ids", missed, 1e-4
    found = logits.gather(1, chosen)[:real]
    weights = found.softmax(-1)
    if not softmax:
        weights = found.sigmoid() / found.sigmoid().sum(1, keepdim=True)
    yield f"{run.__name__} wts", worst(v.wts[:real], weights, weights), 1e-4
    padded = (v.ids[real:] != -1).sum() + v.wts[real:].abs().sum()
    yield f"{run.__name__} padding", float(padded), 0.5


def check_experts(model: Model, launch: Launches, real: int) -> Iterator[Check]:
    """Leaves in `rows` and `s` what the sums are of."""
    v, geo, layer = launch.values, model.geometry, model.geometry.layers - 1
    folded = geo.shared > 0
    launch.gate_up(layer, geo.gate_up, folded=folded)
    a, a_size = torch.zeros(2, v.num_rows * geo.k, geo.width, dtype=torch.float64, device=GPU)
    rows = torch.zeros(v.num_rows * geo.k, geo.hidden, dtype=torch.float64, device=GPU)
    rows_size = rows.clone()
    for pair in range(real * geo.k):
        slot = layer * geo.experts + int(v.ids.view(-1)[pair])
        x = v.h[pair // geo.k].double()
        gate, up, down = (slot_matrix(model, slot, name) for name in ("gate", "up", "down"))
        a[pair] = silu_product(gate @ x, up @ x)
        a_size[pair] = (1 + (gate.abs() @ x.abs())) * (up.abs() @ x.abs())
        rows[pair] = down @ v.a[pair].double()
        rows_size[pair] = down.abs() @ v.a[pair].double().abs()
    yield "gate_up", worst(v.a, a, a_size), 1e-5
    launch.down(layer, geo.down, folded=folded)
    yield "down", worst(v.rows, rows, rows_size), 1e-5
    if folded:
        both, down_matrix = model.shared_gate_up[layer], model.shared_down[layer]
        ends = both.globals.repeat_interleave(geo.shared).unsqueeze(1)
        gate, up = (v.h.double() @ decode(both.packed, both.scale, ends).T).chunk(2, dim=1)
        share = (v.h.double() @ model.shared_gate[layer].double().T).sigmoid()
        shared_a = silu_product(gate, up)
        yield "share", worst(v.share, share.view(-1), share.view(-1)), 1e-5
        yield "gate_up, shared", worst(v.shared_a, shared_a, shared_a.abs().max()), 1e-5
        down = decode(down_matrix.packed, down_matrix.scale, down_matrix.globals)
        s = v.shared_a.double() @ down.T * share
        yield "down, shared", worst(v.s, s, s.abs().max()), 1e-5
        v.s.fill_(torch.nan)
        launch.shared(layer)
        yield "shared_expert", worst(v.s, s, s.abs().max()), 1e-2


def check_sums(model: Model, launch: Launches) -> Iterator[Check]:
    v, geo, layer = launch.values, model.geometry, model.geometry.layers - 1
    folded = geo.shared > 0
    before = v.hid.clone()
    weighted = v.wts.double().unsqueeze(2) * v.rows.double().view(v.num_rows, geo.k, -1)
    wanted = before.double() + weighted.sum(1) + (v.s.double() if folded else 0)
    size = before.double().abs() + weighted.abs().sum(1) + (v.s.double().abs() if folded else 0)
    launch.combine(layer, summed=folded)
    yield "combine", worst(v.hid, wanted, size), 1e-5
    again = []
    for _ in range(2):
        v.hid.copy_(before)
        launch.down_combine(layer, geo.down_combine, folded=folded)
        again.append(v.hid.clone())
    # `rows` and `s` were rounded to bf16, these sums were not.
    yield "down_combine", worst(v.hid, wanted, size), 2.0**-8
    yield "down_combine, again", float((again[0] != again[1]).sum()), 0.5


def checks(model: Model, num_rows: int, padding: int) -> Iterator[Check]:
    real = num_rows - padding
    launch = Launches(model, Values(model, num_rows, real))
    yield from check_norm_and_route(model, launch, real)
    yield from check_experts(model, launch, real)
    yield from check_sums(model, launch)


def all_checks(model: Model) -> Iterator[dict[str, object]]:
    for num_rows, padding in ((1, 0), (2, 0), (4, 0), (5, 2)):
        head = {"check": model.geometry.name, "rows": num_rows, "padding": padding}
        try:
            for what, error, bound in checks(model, num_rows, padding):
                yield {**head, "what": what, "worst": error, "bound": bound, "ok": error < bound}
        except Exception as error:  # one that breaks must not hide the others
            yield {**head, "error": repr(error)[:600], "ok": False}
