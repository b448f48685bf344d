"""The Triton products of many rows under the interpreter against the references: for `test_triton_prefill.py`.

    TRITON_INTERPRET=1 python interpreted_prefill.py tiles|experts|map|products|coded|shared|sums

All in fp32: the interpreter's products in bf16 are wrong.
"""

import sys
from collections.abc import Callable

import torch
from interpreted_moe import SharedExpert, close, poisoned, random_matrix, random_scales, weights

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.workspaces import most_pair_tiles
from firmtoken.runtime.kernels import launch_pair_tiles
from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.combine import reference as combine_reference
from firmtoken.runtime.kernels.combine.triton_blocks import combine
from firmtoken.runtime.kernels.expert_slots import ExpertSlots, make_arena
from firmtoken.runtime.kernels.launch_pair_tiles import find_tiles
from firmtoken.runtime.kernels.linear import triton_fp8_tiles, triton_nvfp4_tiles
from firmtoken.runtime.kernels.matrices import CodedMatrix
from firmtoken.runtime.kernels.moe_down import torch_nvfp4 as down_reference
from firmtoken.runtime.kernels.moe_down.triton_grouped_nvfp4 import moe_down
from firmtoken.runtime.kernels.moe_gate_up import torch_nvfp4 as gate_up_reference
from firmtoken.runtime.kernels.moe_gate_up.triton_grouped_nvfp4 import moe_gate_up
from firmtoken.runtime.kernels.shared_expert.triton_nvfp4_tiles import shared_expert
from firmtoken.runtime.kernels.tile_shapes import TileShapes

HIDDEN, WIDTH, EXPERTS, K, FIRST = 256, 128, 8, 2, 3
SIZES = {"hidden_size": HIDDEN, "expert_width": WIDTH, "num_experts_per_token": K}
CUT = {
    "large_outputs": 64,
    "large_warps": 4,
    "large_stages": 2,
    "small_outputs": 32,
    "small_warps": 4,
    "small_stages": 2,
}
WHERE = {**SIZES, **CUT, "num_experts": EXPERTS}
ROWS, PADDED = 21, 2
UNREAD = Batch(
    rows=ROWS,
    real_rows=ROWS - PADDED,
    token_ids=torch.empty(0),
    positions=torch.empty(0),
    token_slots=torch.empty(0),
    segments=(),
)


def drawn_ids() -> torch.Tensor:
    """All rows want expert 1, so that it fills more than one tile, none wants 4; the last rows are padding."""
    others = torch.tensor([0, 2, 3, 5, 6, 7])[torch.randint(0, 6, (ROWS,))]
    ids = torch.stack((torch.ones(ROWS, dtype=torch.long), others), dim=1)
    ids[ROWS - PADDED :] = -1
    return ids.int()


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


def scratch() -> torch.Tensor:
    """Poison: nothing that lies in a workspace may be read before it is written."""
    return torch.full((1 << 20,), 0x7F, dtype=torch.uint8)


def columns_in_order(width: int) -> torch.Tensor:
    """The column at each place of operand order, by its definition: the bits qqwwdcb come as wwcbqqd."""
    bits = torch.arange(width).unsqueeze(1) >> torch.arange(7) & 1  # of a column, lowest first
    b, c, d, w0, w1, q0, q1 = bits.unbind(1)
    place = torch.stack((d, q0, q1, b, c, w0, w1), dim=1) << torch.arange(7)
    return (place.sum(1) + (torch.arange(width) & -128)).argsort()


def check_tiles() -> None:
    """Order and tiles, and the same where pairs are put in order in several chunks."""
    ids = drawn_ids()
    found = find_tiles(ids, None, FIRST, EXPERTS, scratch(), TileShapes(**CUT))
    keys = torch.where(ids < 0, EXPERTS, ids).view(-1)
    wanted = keys.sort(stable=True).indices
    assert found.rows == 16 and found.most == most_pair_tiles(ROWS * K, EXPERTS, 16)
    assert found.order.tolist() == wanted.tolist()
    launch_pair_tiles.pair_chunk = lambda *_: 16
    again = find_tiles(ids, None, FIRST, EXPERTS, scratch(), TileShapes(**CUT))
    assert again.order.tolist() == wanted.tolist() and torch.equal(again.tiles[-1], found.tiles[-1])
    slots, firsts, ends = found.tiles[:-1].view(3, -1).tolist()
    number = int(found.tiles[-1])
    seen = []
    for slot, first, end in list(zip(slots, firsts, ends, strict=True))[:number]:
        assert first < end
        for pair in wanted[first : min(end, first + 16)].tolist():
            expert = int(ids.view(-1)[pair])
            assert slot == (FIRST + expert if expert >= 0 else -1)
            seen.append(pair)
    assert sorted(seen) == list(range(ROWS * K)) and slots[:number].count(FIRST + 1) == 2


def check_experts() -> None:
    experts, x, ids = random_experts(), torch.randn(ROWS, HIDDEN), drawn_ids()
    a, wanted = poisoned(ROWS * K, WIDTH), poisoned(ROWS * K, WIDTH)
    moe_gate_up(None, x=x, experts=experts, a=a, ids=ids, workspace=scratch(), **WHERE)
    gate_up_reference.moe_gate_up(UNREAD, x=x, experts=experts, a=wanted, ids=ids, **SIZES)
    close(a, wanted[:, columns_in_order(WIDTH)])
    assert not a[-PADDED * K :].any()
    whole = poisoned(ROWS * K, HIDDEN)
    down_reference.moe_down(UNREAD, a=wanted, experts=experts, rows=whole, ids=ids, **SIZES)
    for block, size in ((None, HIDDEN), (0, HIDDEN // 4), (3, HIDDEN // 4)):
        rows = poisoned(ROWS * K, size)
        given = {"experts": experts, "ids": ids, "block": block, "workspace": scratch()}
        moe_down(None, a=a, rows=rows, **given, **WHERE)
        first = (block or 0) * size
        close(rows, whole[:, first : first + size])


def check_map() -> None:
    """Two waves, each with some of the experts anywhere: together they are all."""
    experts, x, ids = random_experts(), torch.randn(ROWS, HIDDEN), drawn_ids()
    slots = torch.randperm(FIRST + EXPERTS)[:EXPERTS].int()
    first_wave = torch.arange(EXPERTS) % 2 == 0
    rows, wanted = poisoned(ROWS * K, HIDDEN), poisoned(ROWS * K, HIDDEN)
    for here in (first_wave, ~first_wave):
        by_expert = torch.where(here, slots, -1)
        a = poisoned(ROWS * K, WIDTH)
        given = {"experts": experts, "ids": ids, "map": by_expert}
        moe_gate_up(None, x=x, a=a, workspace=scratch(), **given, **WHERE)
        b = torch.zeros(ROWS * K, WIDTH)
        gate_up_reference.moe_gate_up(UNREAD, x=x, a=b, **given, **SIZES)
        kept = torch.where(ids < 0, -1, ids).view(-1).long()
        of_wave = (kept < 0) | here[kept.clamp(min=0)]
        close(a[of_wave], b[of_wave][:, columns_in_order(WIDTH)])
        moe_down(None, a=a, rows=rows, workspace=scratch(), **given, **WHERE)
        down_reference.moe_down(UNREAD, a=b, rows=wanted, **given, **SIZES)
    close(rows, wanted)


def check_products() -> None:
    """More outputs than a tile has, joined parts, several tiles of rows of each shape, both orders of columns."""
    w = random_matrix(72, HIDDEN, 3)
    matrix = weights(w)
    for num_rows, quads in ((1, 0), (17, 1), (40, 0), (650, 1)):
        x = torch.randn(num_rows, HIDDEN)
        y = poisoned(num_rows, 80)
        given = {**CUT, "quads": quads}
        triton_nvfp4_tiles.linear(None, x=x, w=w, y=y[:, :72], workspace=scratch(), **given)
        close(y[:, :72], x @ matrix.T)
        assert y[:, 72:].isnan().all()


def check_coded() -> None:
    codes = torch.randint(0, 254, (72, HIDDEN), dtype=torch.int32)
    codes = (codes + (codes >= 127)).to(torch.uint8).view(torch.float8_e4m3fn)  # no NaN
    scales, tail = torch.rand(2), torch.randn(16, HIDDEN).bfloat16().float()
    factor = scales.repeat_interleave(torch.tensor([40, 32])).unsqueeze(1)
    matrix = torch.cat((codes.float() * factor, tail))
    for num_rows, num_outputs in ((3, 88), (70, 72)):
        x = torch.randn(num_rows, HIDDEN)
        last = tail if num_outputs == 88 else None
        w = CodedMatrix(codes=codes, scales=scales, starts=(40,), tail=last)
        for fp8_units in (True, False):
            y = poisoned(num_rows, num_outputs)
            triton_fp8_tiles.linear(
                None, x=x, w=w, y=y, fp8_units=fp8_units, large_step=64, small_step=128, **CUT
            )
            close(y, x @ matrix[:num_outputs].T)


def check_shared() -> None:
    x = torch.randn(ROWS, HIDDEN)
    one = SharedExpert(x, WIDTH)
    weights_of = {"gate_up": one.gate_up, "down": one.down, "gate": one.gate}
    for quads in (0, 1):
        s = poisoned(ROWS, HIDDEN)
        given = {**CUT, "quads": quads}
        shared_expert(None, h=x, **weights_of, s=s, workspace=scratch(), **given)
        close(s, one.wanted)


def check_sums() -> None:
    given = {"rows_at_once": 4, "columns": 16, "warps": 1}
    for block, size in ((None, HIDDEN), (0, 24), (2, 24)):
        rows, wts = torch.randn(ROWS * K, size), torch.rand(ROWS, K)
        hid, s = torch.randn(ROWS, HIDDEN), torch.randn(ROWS, HIDDEN)
        for shared in (None, s):
            got, wanted = hid.clone(), hid.clone()
            operands = {"rows": rows, "wts": wts, "s": shared, "block": block}
            combine(None, hid=got, **operands, **given)
            combine_reference.combine(UNREAD, hid=wanted, **operands)
            close(got, wanted)


PARTS: dict[str, Callable[[], None]] = {
    "tiles": check_tiles,
    "experts": check_experts,
    "map": check_map,
    "products": check_products,
    "coded": check_coded,
    "shared": check_shared,
    "sums": check_sums,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    for part in sys.argv[1:]:
        PARTS[part]()
