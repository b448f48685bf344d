"""The Triton kernels of a layer's experts under the interpreter against the references: for `test_triton_moe.py`.

    TRITON_INTERPRET=1 python interpreted_moe.py experts|shared|sums|router|norm

All in fp32: the interpreter truncates where a card rounds to bf16. Sizes are as small as they can be, since a product
of a block takes it milliseconds, and no multiples of the tiles of `down`.
"""

import sys
from collections.abc import Callable

import torch
from torch.nn.functional import rms_norm, silu

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels.add_norm.triton_rows import add_norm
from firmtoken.runtime.kernels.combine.triton_rows import combine
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots, make_arena
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.moe_down.triton_nvfp4 import SharedDown, moe_down, moe_down_combine
from firmtoken.runtime.kernels.moe_gate_up.torch_nvfp4 import decode_gate_up
from firmtoken.runtime.kernels.moe_gate_up.triton_nvfp4 import moe_gate_up
from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.kernels.route.triton_norm_top_k import add_norm_route
from firmtoken.runtime.kernels.route.triton_top_k import route
from firmtoken.runtime.kernels.route_sigmoid.triton_top_k import route_sigmoid
from firmtoken.runtime.kernels.shared_expert.triton_nvfp4 import shared_expert

HIDDEN, WIDTH, SHARED, EXPERTS, K, FIRST = 48, 16, 32, 3, 2, 2
SIZES = {"hidden_size": HIDDEN, "expert_width": WIDTH, "num_experts_per_token": K}
UP_TILE = {"warps": 1, "lanes": 16, "outputs": 4, "early": False}
DOWN_TILE = {"warps": 1, "lanes": 8, "outputs": 8, "early": False}
EPS = 1e-6
IDS = torch.tensor([[2, 0], [-1, -1]], dtype=torch.int32)
"""The second row is padding."""
ROWS = IDS.shape[0]


def poisoned(*shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan)


def rows_of(num_rows: int) -> DeviceRows:
    unread = torch.zeros(1, dtype=torch.int32)
    given = dict.fromkeys(DeviceRows.__dataclass_fields__, unread)
    return DeviceRows(**(given | {"num_rows": torch.tensor([num_rows], dtype=torch.int32)}))


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(
        got.double(), wanted.double(), rtol=2e-5, atol=2e-6 * scale_of(wanted)
    )


def scale_of(values: torch.Tensor) -> float:
    return float(values.abs().max()) + 1e-30


def random_scales(*shape: int) -> torch.Tensor:
    """All that are positive and no NaN, subnormal ones included."""
    return torch.randint(0, 127, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


def random_experts() -> ExpertSlots:
    layout = slot_parts("nvfp4", HIDDEN, WIDTH)
    num_slots = FIRST + EXPERTS
    arena = make_arena(torch.zeros(num_slots, slot_bytes(layout), dtype=torch.uint8), layout)
    for index, name in enumerate(("gate", "up", "down")):
        nibbles, scale = arena.parts[name], arena.parts[f"{name}_scale"]
        nibbles.copy_(torch.randint(0, 256, nibbles.shape))
        scale.copy_(random_scales(*scale.shape))
        # Each half has its own global scale: a kernel that uses one for both is far off.
        arena.parts["globals"][:, index] = torch.rand(num_slots) * 10.0 ** -(2 + index)
    return ExpertSlots(first=FIRST, count=EXPERTS, arena=arena)


def random_matrix(num_outputs: int, width: int, parts: int) -> PackedMatrix:
    return PackedMatrix(
        packed=torch.randint(0, 256, (num_outputs, width // 2), dtype=torch.uint8),
        scale=random_scales(num_outputs, width // 16),
        globals=torch.rand(parts) * 1e-2,
        starts=tuple(num_outputs // parts * part for part in range(1, parts)),
    )


def weights(w: PackedMatrix) -> torch.Tensor:
    """fp32 [N,K]"""
    parts = len(w.globals)
    joined = zip(w.packed.chunk(parts), w.scale.chunk(parts), w.globals.tolist(), strict=True)
    return torch.cat([dequantise(packed, scale, number) for packed, scale, number in joined])


def wanted_a(arena: ExpertArena, x: torch.Tensor) -> torch.Tensor:
    a = torch.zeros(x.shape[0] * K, WIDTH)
    for pair, expert in enumerate(IDS[: x.shape[0]].view(-1).tolist()):
        if expert >= 0:
            gate, up = (decode_gate_up(arena, FIRST + expert) @ x[pair // K]).chunk(2)
            a[pair] = silu(gate) * up
    return a


def wanted_rows(arena: ExpertArena, a: torch.Tensor) -> torch.Tensor:
    rows = torch.zeros(a.shape[0], HIDDEN)
    for pair, expert in enumerate(IDS.view(-1)[: a.shape[0]].tolist()):
        if expert >= 0:
            slot = FIRST + expert
            number = float(arena.parts["globals"][slot, 2])
            down = dequantise(arena.parts["down"][slot], arena.parts["down_scale"][slot], number)
            rows[pair] = down @ a[pair]
    return rows


class SharedExpert:
    """Random weights, and what they make of x."""

    def __init__(self, x: torch.Tensor, width: int = SHARED) -> None:
        hidden = x.shape[1]
        self.gate_up = random_matrix(2 * width, hidden, 2)
        self.down = random_matrix(hidden, width, 1)
        self.gate = 0.1 * torch.randn(1, hidden)
        gated, up = (x @ weights(self.gate_up).T).chunk(2, dim=1)
        self.wanted_a = silu(gated) * up
        self.share = (x @ self.gate.T).sigmoid().view(-1)
        self.wanted = self.wanted_a @ weights(self.down).T * self.share.unsqueeze(1)


def check_experts() -> None:
    experts, x = random_experts(), torch.randn(ROWS, HIDDEN)
    absolute = torch.where(IDS < 0, -1, IDS + FIRST).int()
    by_id, by_slot = poisoned(ROWS * K, WIDTH), poisoned(ROWS * K, WIDTH)
    moe_gate_up(None, x=x, experts=experts, a=by_id, ids=IDS, **SIZES, **UP_TILE)
    close(by_id, wanted_a(experts.arena, x))
    moe_gate_up(None, x=x, experts=experts, a=by_slot, slots=absolute, **SIZES, **UP_TILE)
    assert torch.equal(by_slot, by_id)
    assert not by_id[K : 2 * K].any()
    a = by_slot
    by_id, by_slot = poisoned(ROWS * K, HIDDEN), poisoned(ROWS * K, HIDDEN)
    moe_down(None, a=a, experts=experts, rows=by_id, ids=IDS, **SIZES, **DOWN_TILE)
    close(by_id, wanted_rows(experts.arena, a))
    moe_down(None, a=a, experts=experts, rows=by_slot, slots=absolute, **SIZES, **DOWN_TILE)
    assert torch.equal(by_slot, by_id)


def check_shared() -> None:
    """As one more expert of each row, and alone: the same numbers."""
    experts, x, ids = random_experts(), torch.randn(1, HIDDEN), IDS[:1]
    one = SharedExpert(x)
    a, shared_a = poisoned(K, WIDTH), poisoned(1, SHARED)
    share = poisoned(1)
    given = {"shared_a": shared_a, "share": share}
    up = {"shared_gate_up": one.gate_up, "shared_gate": one.gate, **given}
    moe_gate_up(None, x=x, experts=experts, a=a, ids=ids, **up, **SIZES, **UP_TILE)
    close(a, wanted_a(experts.arena, x))
    close(shared_a, one.wanted_a)
    close(share, one.share)
    rows, s = poisoned(K, HIDDEN), poisoned(1, HIDDEN)
    down = {"shared_down": one.down, "s": s, **given}
    moe_down(None, a=a, experts=experts, rows=rows, ids=ids, **down, **SIZES, **DOWN_TILE)
    close(rows, wanted_rows(experts.arena, a))
    close(s, one.wanted)
    alone = poisoned(1, HIDDEN)
    shared_expert(
        None,
        h=x,
        gate_up=one.gate_up,
        down=one.down,
        gate=one.gate,
        s=alone,
        workspace=poisoned(SHARED + 1).view(torch.uint8),
        gate_up_warps=UP_TILE["warps"],
        gate_up_lanes=UP_TILE["lanes"],
        gate_up_outputs=UP_TILE["outputs"],
        down_warps=DOWN_TILE["warps"],
        down_lanes=DOWN_TILE["lanes"],
        down_outputs=DOWN_TILE["outputs"],
        early=False,
    )
    assert torch.equal(alone, s)


def check_sums() -> None:
    experts, x = random_experts(), torch.randn(ROWS, HIDDEN)
    one = SharedExpert(x)
    a = torch.randn(ROWS * K, WIDTH)
    wts = torch.rand(ROWS, K) * (IDS >= 0)
    rows = wanted_rows(experts.arena, a)
    hid = torch.randn(ROWS, HIDDEN) * scale_of(rows)
    routed = hid + (wts.unsqueeze(2) * rows.view(ROWS, K, HIDDEN)).sum(1)
    given = {"columns": 32, "warps": 1, "early": False}
    for s, wanted in ((None, routed), (one.wanted, routed + one.wanted)):
        got = hid.clone()
        combine(None, rows=rows, wts=wts, hid=got, s=s, **given)
        close(got, wanted)
        got = hid.clone()
        down = None
        if s is not None:
            down = SharedDown(a=one.wanted_a, share=one.share, down=one.down)
        where = {"experts": experts, "ids": IDS, "shared": down}
        moe_down_combine(None, a=a, wts=wts, hid=got, **where, **SIZES, **DOWN_TILE)
        close(got, wanted)


def check_router() -> None:
    """Twice in a row, so that the count of arrivals must be back; an odd number of experts; equals; padding."""
    num_experts, k, num_rows = 21, 5, 3
    h, router, bias = (
        torch.randn(num_rows, HIDDEN),
        torch.randn(num_experts, HIDDEN),
        torch.rand(21),
    )
    router[7] = router[4]
    bias[7] = bias[4]
    h[0] = router[4]  # experts 4 and 7 are its best, and equal
    workspace = poisoned(num_rows * (num_experts + 1) + 3)  # logits begin at 16 bytes
    arrived = workspace.view(torch.int32)[:num_rows].zero_()
    logits = h @ router.T
    score = logits.sigmoid()
    for name, wish in (("softmax", logits), ("sigmoid", score + bias)):
        wanted = wish.sort(dim=1, descending=True, stable=True).indices[:, :k]
        chosen = logits.gather(1, wanted).softmax(-1)
        if name == "sigmoid":
            chosen = score.gather(1, wanted)
            chosen = chosen / chosen.sum(1, keepdim=True)
        for _ in range(2):
            ids, wts = torch.full((num_rows, k), 99, dtype=torch.int32), poisoned(num_rows, k)
            operands = {"h": h, "router": router, "ids": ids, "wts": wts, "workspace": workspace}
            constants = {"num_experts_per_token": k, "experts_at_once": 2, "early": False}
            if name == "sigmoid":
                route_sigmoid(rows_of(2), bias=bias, **operands, **constants)
            else:
                route(rows_of(2), **operands, **constants)
            assert ids[:2].tolist() == wanted[:2].tolist(), (name, ids, wanted)
            close(wts[:2], chosen[:2])
            assert ids[2].tolist() == [-1] * k and not wts[2].any()
            assert not arrived.any()


def check_norm() -> None:
    hidden = 1100  # more than a program of the router takes at once
    hid, y, norm = torch.randn(2, hidden), torch.randn(2, hidden), torch.rand(hidden)
    wanted = rms_norm(hid + y, (hidden,), norm, EPS)
    got, h = hid.clone(), y.clone()
    given = {"eps": EPS, "warps": 1, "early": False}
    add_norm(None, hid=got, y=h, h=h, norm=norm, **given)
    assert torch.equal(got, hid + y)
    close(h, wanted)
    got = hid.clone()
    add_norm(None, hid=got, y=y, **given)
    assert torch.equal(got, hid + y)
    h = poisoned(2, hidden)
    add_norm(None, hid=got, h=h, norm=norm, **given)
    close(h, wanted)

    router = torch.randn(6, hidden)
    got, h = hid.clone(), poisoned(2, hidden)
    ids, wts = torch.full((2, 2), 99, dtype=torch.int32), poisoned(2, 2)
    add_norm_route(
        rows_of(1),
        hid=got,
        y=y,
        norm=norm,
        h=h,
        router=router,
        ids=ids,
        wts=wts,
        logits=poisoned(2, 6),
        arrived=torch.zeros(2, dtype=torch.int32),
        eps=EPS,
        num_experts_per_token=2,
        experts_at_once=4,
        early=False,
    )
    assert torch.equal(got, hid + y)
    close(h, wanted)
    best, chosen = (wanted @ router.T).topk(2)
    assert ids.tolist() == [chosen[0].tolist(), [-1, -1]]
    close(wts[0], best[0].softmax(-1))
    assert not wts[1].any()


PARTS: dict[str, Callable[[], None]] = {
    "experts": check_experts,
    "shared": check_shared,
    "sums": check_sums,
    "router": check_router,
    "norm": check_norm,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    PARTS[sys.argv[1]]()
