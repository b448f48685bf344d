"""Routed experts: each kernel, each way to address slots, each number of rows gives the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertArena, ExpertSlots, make_arena
from firmtoken.runtime.kernels.nvfp4 import dequantise

HIDDEN, WIDTH, EXPERTS, K, FIRST = 64, 48, 8, 3, 5
SIZES = {"hidden_size": HIDDEN, "expert_width": WIDTH, "num_experts_per_token": K}
NAMES = ("torch_grouped", "torch_gather")
MakeExperts = Callable[[int, int, int], ExpertArena]
Launch = Callable[..., Any]


def random_ids(num_rows: int, padding: int) -> torch.Tensor:
    ids = torch.stack([torch.randperm(EXPERTS)[:K] for _ in range(num_rows)]).int()
    ids[num_rows - padding :] = -1
    return ids


def formula(arena: ExpertArena, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """rows[T*k,H], one pair at a time."""
    rows = torch.zeros(slots.numel(), HIDDEN)
    for pair, slot in enumerate(slots.view(-1).tolist()):
        if slot >= 0:
            gate, up, down = (arena.parts[name][slot] for name in ("gate", "up", "down"))
            vector = x[pair // K]
            gated = gate @ vector
            rows[pair] = down @ (gated * gated.sigmoid() * (up @ vector))
    return rows


@pytest.fixture
def experts_of(launch: Launch, poisoned: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """rows[T*k,H] through both kernels of this name."""

    def run(batch: Batch, name: str, x: torch.Tensor, **where: Any) -> torch.Tensor:
        pairs = x.shape[0] * K
        a, rows = poisoned(pairs, WIDTH), poisoned(pairs, HIDDEN)
        launch("moe_gate_up", batch, name=name, x=x, a=a, **where, **SIZES)
        launch("moe_down", batch, name=name, a=a, rows=rows, **where, **SIZES)
        return rows

    return run


@pytest.mark.report(67)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_rows", [1, 2, 10, 11, 50, 200])
def test_three_ways_to_address_slots_agree_with_the_formula(
    make_experts: MakeExperts,
    make_batch: Callable[..., Batch],
    part: Any,
    experts_of: Callable[..., torch.Tensor],
    name: str,
    num_rows: int,
) -> None:
    arena = make_experts(FIRST + EXPERTS + 2, HIDDEN, WIDTH)
    experts = ExpertSlots(first=FIRST, count=EXPERTS, arena=arena)
    padding = 2 if num_rows > 2 else 0
    batch = make_batch([part(rows=num_rows - padding)], padding=padding)
    x, ids = torch.randn(num_rows, HIDDEN), random_ids(num_rows, padding)
    by_expert = (torch.randperm(EXPERTS) + FIRST).int()
    direct = torch.where(ids < 0, -1, ids + FIRST)
    mapped = torch.where(ids < 0, -1, by_expert[ids.clamp(min=0).long()]).int()

    by_id = experts_of(batch, name, x, ids=ids, experts=experts)
    torch.testing.assert_close(by_id, formula(arena, x, direct), rtol=1e-4, atol=1e-5)
    by_map = experts_of(batch, name, x, ids=ids, map=by_expert, experts=experts)
    torch.testing.assert_close(by_map, formula(arena, x, mapped), rtol=1e-4, atol=1e-5)
    by_slot = experts_of(batch, name, x, slots=mapped, experts=experts)
    assert torch.equal(by_slot, by_map)
    if padding:
        assert not by_slot[-padding * K :].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_rows", [3, 40])
def test_waves_fill_the_rows_of_their_own_experts_and_leave_the_others(
    make_experts: MakeExperts,
    make_batch: Callable[..., Batch],
    part: Any,
    launch: Launch,
    poisoned: Callable[..., torch.Tensor],
    experts_of: Callable[..., torch.Tensor],
    name: str,
    num_rows: int,
) -> None:
    arena = make_experts(FIRST + EXPERTS, HIDDEN, WIDTH)
    experts = ExpertSlots(first=FIRST, count=EXPERTS, arena=arena)
    batch = make_batch([part(rows=num_rows - 1)], padding=1)
    x, ids = torch.randn(num_rows, HIDDEN), random_ids(num_rows, 1)
    whole = torch.arange(FIRST, FIRST + EXPERTS).int()
    wanted = experts_of(batch, name, x, ids=ids, map=whole, experts=experts)
    a, rows = poisoned(num_rows * K, WIDTH), poisoned(num_rows * K, HIDDEN)
    for wave in ((0, 3, 5), (), (1, 2), (4, 6, 7)):
        own = torch.full((EXPERTS,), -1, dtype=torch.int32)
        own[list(wave)] = whole[list(wave)]
        before = rows.clone()
        where = {"ids": ids, "map": own, "experts": experts}
        launch("moe_gate_up", batch, name=name, x=x, a=a, **where, **SIZES)
        launch("moe_down", batch, name=name, a=a, rows=rows, **where, **SIZES)
        others = torch.tensor([e >= 0 and e not in wave for e in ids.view(-1).tolist()])
        assert torch.equal(rows[others].nan_to_num(), before[others].nan_to_num())
    assert torch.equal(rows, wanted)


@pytest.mark.parametrize("name", [*NAMES, "torch_nvfp4"])
@pytest.mark.parametrize("num_rows", [3, 40])
def test_blocks_of_columns_are_cut_from_the_whole(
    make_batch: Callable[..., Batch],
    part: Any,
    launch: Launch,
    poisoned: Callable[..., torch.Tensor],
    name: str,
    num_rows: int,
) -> None:
    arenas = packed_arena(EXPERTS)
    arena = arenas[0] if name == "torch_nvfp4" else arenas[1]
    batch = make_batch([part(rows=num_rows - 1)], padding=1)
    pairs, wide = num_rows * K, HIDDEN // 4
    a = torch.randn(pairs, WIDTH)
    where = {
        "ids": random_ids(num_rows, 1),
        "experts": ExpertSlots(first=0, count=EXPERTS, arena=arena),
    }
    whole, wts = poisoned(pairs, HIDDEN), torch.rand(num_rows, K)
    launch("moe_down", batch, name=name, a=a, rows=whole, **where, **SIZES)
    before, shared = torch.randn(num_rows, HIDDEN), torch.randn(num_rows, HIDDEN)
    summed, blocked = before.clone(), before.clone()
    launch("combine", batch, rows=whole, wts=wts, hid=summed, s=shared)
    for block in range(4):
        rows = poisoned(pairs, wide)
        launch("moe_down", batch, name=name, a=a, rows=rows, block=block, **where, **SIZES)
        columns = slice(block * wide, (block + 1) * wide)
        torch.testing.assert_close(rows, whole[:, columns], rtol=1e-5, atol=1e-6)
        launch("combine", batch, rows=rows, wts=wts, hid=blocked, s=shared, block=block)
        assert torch.equal(blocked[:, (block + 1) * wide :], before[:, (block + 1) * wide :])
    torch.testing.assert_close(blocked, summed, rtol=1e-5, atol=1e-5)


def packed_arena(num_slots: int) -> tuple[ExpertArena, ExpertArena]:
    """nvfp4 slots with random nibbles, and fp32 slots with the numbers that they stand for."""
    layout = slot_parts("nvfp4", HIDDEN, WIDTH)
    packed = make_arena(torch.zeros(num_slots, slot_bytes(layout), dtype=torch.uint8), layout)
    plain_layout = slot_parts("fp32", HIDDEN, WIDTH)
    plain = make_arena(
        torch.zeros(num_slots, slot_bytes(plain_layout), dtype=torch.uint8), plain_layout
    )
    for index, name in enumerate(("gate", "up", "down")):
        nibbles, scale = packed.parts[name], packed.parts[f"{name}_scale"]
        nibbles.copy_(torch.randint(0, 256, nibbles.shape))
        scale.copy_((torch.rand(scale.shape) * 400 + 1).to(torch.float8_e4m3fn))
        # Each half has its own global scale: a kernel that uses one for both is far off.
        packed.parts["globals"][:, index] = torch.rand(num_slots) * 10.0 ** -(3 + index)
        for slot in range(num_slots):
            number = float(packed.parts["globals"][slot, index])
            plain.parts[name][slot] = dequantise(nibbles[slot], scale[slot], number)
    return packed, plain


@pytest.mark.report(54)
@pytest.mark.parametrize("num_rows", [1, 4, 40])
def test_nvfp4_slots_give_what_their_decoded_copies_give(
    make_batch: Callable[..., Batch],
    part: Any,
    experts_of: Callable[..., torch.Tensor],
    num_rows: int,
) -> None:
    packed, plain = packed_arena(EXPERTS)
    batch = make_batch([part(rows=num_rows)])
    x, ids = torch.randn(num_rows, HIDDEN), random_ids(num_rows, 0)
    got, wanted = (
        experts_of(
            batch, name, x, ids=ids, experts=ExpertSlots(first=0, count=EXPERTS, arena=arena)
        )
        for name, arena in (("torch_nvfp4", packed), ("torch_grouped", plain))
    )
    assert torch.equal(got, wanted)


def test_nvfp4_decodes_every_code_with_one_rounding() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(8, 32)
    scale = torch.tensor([0.5, 448.0, 2**-9, 1.75] * 8).view(8, 4).to(torch.float8_e4m3fn)
    global_scale = 1.2345678e-5
    values = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    got = dequantise(packed, scale, global_scale)
    for row in range(8):
        for column in range(64):
            byte = int(packed[row, column // 2])
            code = byte >> 4 if column % 2 else byte & 15
            exact = values[code & 7] * (-1 if code & 8 else 1) * float(scale[row, column // 16])
            assert got[row, column] == torch.tensor(exact) * torch.tensor(global_scale)


@pytest.mark.report(63)
def test_views_of_an_arena_share_its_bytes_at_any_offset() -> None:
    layout = slot_parts("fp32", HIDDEN, WIDTH)
    size = slot_bytes(layout)
    whole = torch.zeros(256 + 3 * size, dtype=torch.uint8)
    arena = make_arena(whole[256:].view(3, size), layout)
    arena.parts["up"][2] = 1.0
    arena.matrices["down"][0].fill_(2.0)
    assert torch.equal(arena.parts["gate_up"][2, WIDTH:], torch.ones(WIDTH, HIDDEN))
    numbers = whole[256:].view(torch.float32)
    assert int((numbers == 1).sum()) == int((numbers == 2).sum()) == WIDTH * HIDDEN
