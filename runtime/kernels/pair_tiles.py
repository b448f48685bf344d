"""(row, expert) pairs in order of their expert, cut into tiles of one expert each: found on the device, every time.

Two launches. `count_pairs`: each program counts the experts of a chunk of pairs. `place_pairs`: each program adds up
what chunks before its own have, counts for each of its pairs those of its expert that come before it, and puts them in
their place, in their old order, so that the order depends on nothing but ids; the first program cuts each expert's
pairs into tiles. Pairs of padded rows (id below 0) come last and get tiles without a slot; experts that a map has at -1
get none.

    order   int32 [P]             pairs by expert, then by number
    tiles   int32 [3 * most + 1]  of each tile its slot (-1: padded rows), first place, end; and at last their number
    counts  int32 [chunks, bins]  of a chunk, by expert, padded rows after all
    begins  int32 [chunks, bins]  place of a chunk's first pair of each expert

The arrays lie one after the other in a workspace (`operand_order` of compiler/workspaces.py), counts and begins first.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

from collections.abc import Iterator

import triton
import triton.language as tl

from firmtoken.compiler.workspaces import PAIR_CHUNK, pair_bins
from firmtoken.runtime.kernels.builds import Build
from firmtoken.runtime.kernels.tile_shapes import TileShapes

PAIR_WARPS = 8
CHUNKS_AT_ONCE = tl.constexpr(8)
PAIRS_AT_ONCE = tl.constexpr(32)
LARGE_CHUNK = 2 * PAIR_CHUNK
"""Of many pairs: what chunks have is added up in each, places are compared with each other within one."""
INTEGERS = ("num_pairs", "num_experts", "first", "mapped", "rows", "most_tiles")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("num_pairs", "num_experts"))
def count_pairs(
    ids_ptr, counts_ptr, num_pairs, num_experts, CHUNK: tl.constexpr, BINS: tl.constexpr
):
    """counts of int32 ids [num_pairs]; program c is chunk c."""
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    key = _keys(ids_ptr, pair, num_pairs, num_experts)
    bins = tl.arange(0, BINS)
    tl.store(counts_ptr + chunk * BINS + bins, tl.histogram(key, BINS))


@triton.jit(do_not_specialize=INTEGERS)
def place_pairs(
    ids_ptr,
    map_ptr,
    order_ptr,
    tiles_ptr,
    counts_ptr,
    begins_ptr,
    num_pairs,
    num_experts,
    first,
    mapped,
    rows,
    most_tiles,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
):
    """order, and tiles of at most `rows` pairs; an expert's slot is `first + expert`, or by the map where `mapped`."""
    chunk = tl.program_id(0)
    bins = tl.arange(0, BINS)
    total = tl.zeros((CHUNKS_AT_ONCE, BINS), tl.int32)
    before = tl.zeros((CHUNKS_AT_ONCE, BINS), tl.int32)
    for first_chunk in range(0, tl.num_programs(0), CHUNKS_AT_ONCE):
        other = first_chunk + tl.arange(0, CHUNKS_AT_ONCE)[:, None]
        at = counts_ptr + other * BINS + bins[None, :]
        count = tl.load(at, mask=other < tl.num_programs(0), other=0)
        total += count
        before += tl.where(other < chunk, count, 0)
    total = tl.sum(total, axis=0)
    start = tl.cumsum(total, axis=0) - total
    tl.store(begins_ptr + chunk * BINS + bins, start + tl.sum(before, axis=0))

    place = tl.arange(0, CHUNK)
    key = _keys(ids_ptr, chunk * CHUNK + place, num_pairs, num_experts)
    earlier = tl.zeros((PAIRS_AT_ONCE, CHUNK), tl.int32)
    for first_place in range(0, CHUNK, PAIRS_AT_ONCE):
        other = first_place + tl.arange(0, PAIRS_AT_ONCE)
        other_key = _keys(ids_ptr, chunk * CHUNK + other, num_pairs, num_experts)
        same = other_key[:, None] == key[None, :]
        earlier += (same & (other[:, None] < place[None, :])).to(tl.int32)
    tl.debug_barrier()  # begins are read by other lanes than wrote them
    at = tl.load(begins_ptr + chunk * BINS + key) + tl.sum(earlier, axis=0)
    tl.store(order_ptr + at, chunk * CHUNK + place, mask=key <= num_experts)

    if chunk == 0:
        slot = first + bins
        if mapped != 0:
            slot = tl.load(map_ptr + bins, mask=bins < num_experts, other=-1).to(tl.int32)
        padded = bins == num_experts
        live = padded | ((bins < num_experts) & (slot >= 0))
        count = tl.where(live, (total + rows - 1) // rows, 0)
        slot = tl.where(padded, -1, slot)
        tile = tl.cumsum(count, axis=0) - count
        tl.store(tiles_ptr + 3 * most_tiles, tl.sum(count, axis=0))
        for turn in range(tl.max(count, axis=0)):
            there = turn < count
            tl.store(tiles_ptr + tile + turn, slot, mask=there)
            tl.store(tiles_ptr + most_tiles + tile + turn, start + turn * rows, mask=there)
            tl.store(tiles_ptr + 2 * most_tiles + tile + turn, start + total, mask=there)


@triton.jit
def _keys(ids_ptr, pair, num_pairs, num_experts):
    """Experts of pairs; those of padded rows after all, those beyond the end after these."""
    expert = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=0)
    expert = tl.where(expert < 0, num_experts, expert)
    return tl.where(pair < num_pairs, expert, num_experts + 1)


@triton.jit
def load_tile(order_ptr, tiles_ptr, most_tiles, tile, ROWS: tl.constexpr):
    """Slot of a tile, its pairs [ROWS] (0 where there is none), and which there are."""
    slot = tl.load(tiles_ptr + tile)
    place = tl.load(tiles_ptr + most_tiles + tile) + tl.arange(0, ROWS)
    there = place < tl.load(tiles_ptr + 2 * most_tiles + tile)
    return slot, tl.load(order_ptr + place, mask=there, other=0), there


def pair_tile_rows(num_pairs: int, num_experts: int, cut: TileShapes) -> int:
    """Rows of a tile for so many pairs, if experts were equally wanted.

    Where some experts need a second tile that costs less than larger tiles for all (NOTES.md).
    """
    return cut.tile_rows(num_pairs / num_experts)


def pair_chunk(num_pairs: int, cut: TileShapes) -> int:
    """Pairs of a chunk, for so many."""
    return LARGE_CHUNK if num_pairs > cut.large_chunk_from else PAIR_CHUNK


def pair_tile_builds(num_pairs: int, num_experts: int, cut: TileShapes) -> Iterator[Build]:
    """Both launches, for at most so many pairs."""
    for chunk in sorted({PAIR_CHUNK, pair_chunk(num_pairs, cut)}):
        constants = {"CHUNK": chunk, "BINS": pair_bins(num_experts)}
        grid = (-(-num_pairs // chunk),)
        yield Build(
            name=f"pairs counted by {chunk}",
            function=count_pairs,
            arguments={
                **dict.fromkeys(("ids_ptr", "counts_ptr"), "*i32"),
                **dict.fromkeys(("num_pairs", "num_experts"), "i32"),
            },
            constants=constants,
            num_warps=PAIR_WARPS,
            grid=grid,
        )
        yield Build(
            name=f"pairs placed by {chunk}",
            function=place_pairs,
            arguments={
                **dict.fromkeys(
                    ("ids_ptr", "map_ptr", "order_ptr", "tiles_ptr", "counts_ptr", "begins_ptr"),
                    "*i32",
                ),
                **dict.fromkeys(INTEGERS, "i32"),
            },
            constants=constants,
            num_warps=PAIR_WARPS,
            grid=grid,
        )
