"""Down projection of NVFP4 experts for many rows, on tensor cores (W4A16): the Triton function that is launched.

A program makes OUTPUTS columns of `rows` for one tile of an expert's pairs (`pair_tiles.py`).
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

import triton
import triton.language as tl

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.workspaces import most_pair_tiles
from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.moe_gate_up.nvfp4_groups import group_build
from firmtoken.runtime.kernels.nvfp4_operand import UNSHIFT, multiply_tile
from firmtoken.runtime.kernels.pair_tiles import load_tile, pair_tile_builds, pair_tile_rows
from firmtoken.runtime.kernels.slot_offsets import DOWN_GLOBAL_BYTES, slot_offsets
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("most_tiles", "first_column"))
def down_groups(
    a_ptr,
    arena_ptr,
    rows_ptr,
    order_ptr,
    tiles_ptr,
    most_tiles,
    first_column,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    SLOT_BYTES: tl.constexpr,
    CODES_AT: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBAL_AT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
):
    """rows[P, COLUMNS] = down a, a[P, WIDTH] bf16 (fp32 in tests), from `first_column` of the output on.

    Columns of a are in operand order (`nvfp4_operand.py`).

    Pairs without a slot give zeros; rows of those in no tile stay as they are. An expert lies in a slot of the arena
    (uint8): codes at CODES_AT, scales at SCALE_AT, its global scale. Program (tile of columns, tile of pairs).
    """
    tile = tl.program_id(1)
    if tile >= tl.load(tiles_ptr + 3 * most_tiles):
        return
    slot, pair, there = load_tile(order_ptr, tiles_ptr, most_tiles, tile, ROWS)
    column = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    at = rows_ptr + pair.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    kept = there[:, None] & (column < COLUMNS)[None, :]
    if slot < 0:
        tl.store(at, tl.zeros((ROWS, OUTPUTS), rows_ptr.dtype.element_ty), mask=kept)
        return
    slot_ptr = arena_ptr + slot.to(tl.int64) * SLOT_BYTES
    sums = multiply_tile(
        a_ptr,
        pair * WIDTH,
        slot_ptr + CODES_AT,
        slot_ptr + SCALE_AT,
        first_column + tl.minimum(column, COLUMNS - 1),
        WIDTH,
        ROWS,
        OUTPUTS,
        STAGES,
        QUADS,
    )
    factor = tl.load((slot_ptr + GLOBAL_AT).to(tl.pointer_type(tl.float32))) * UNSHIFT
    tl.store(at, tl.trans(sums * factor).to(rows_ptr.dtype.element_ty), mask=kept)


def down_constants(hidden_size: int, expert_width: int) -> dict[str, int]:
    """What the function knows of a model."""
    offsets = slot_offsets(hidden_size, expert_width)
    return {
        "WIDTH": expert_width,
        "SLOT_BYTES": slot_bytes(slot_parts("nvfp4", hidden_size, expert_width)),
        "CODES_AT": offsets["down"],
        "SCALE_AT": offsets["down_scale"],
        "GLOBAL_AT": offsets["globals"] + DOWN_GLOBAL_BYTES,
    }


def down_builds(
    launch: Launch,
    *,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    num_experts: int,
    **shapes: int,
) -> tuple[Build, ...]:
    """A form for each tile that so many rows may ask for, and what finds the tiles."""
    pairs = launch.num_rows * num_experts_per_token
    columns = launch.columns("rows")
    model = {**down_constants(hidden_size, expert_width), "COLUMNS": columns}
    cut = TileShapes(**shapes)
    return (
        *pair_tile_builds(pairs, num_experts, cut),
        *(
            group_build(
                down_groups,
                {
                    "a_ptr": launch.pointer("a"),
                    "arena_ptr": "*u8",
                    "rows_ptr": launch.pointer("rows"),
                },
                {**model, **cut.constants(rows)},
                warps=cut.warps(rows),
                columns=-(-columns // cut.constants(rows)["OUTPUTS"]),
                tiles=most_pair_tiles(pairs, num_experts, rows),
                integers=("most_tiles", "first_column"),
            )
            for rows in SHAPES
            if rows <= pair_tile_rows(pairs, num_experts, cut)
        ),
    )
