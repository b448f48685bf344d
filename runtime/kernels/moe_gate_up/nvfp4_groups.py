"""Gate and up halves of NVFP4 experts for many rows, on tensor cores (W4A16): the Triton function that is launched.

A program makes OUTPUTS / 2 numbers of `a` for one tile of an expert's pairs (`pair_tiles.py`). Its tile of weights has
gate and up in turns of eight rows: a lane of a tensor core has rows r and r + 8 of its result, so both halves of a
number meet in one lane.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

from collections.abc import Mapping

import triton
import triton.language as tl

from firmtoken.compiler.expert_slots import slot_bytes, slot_parts
from firmtoken.compiler.workspaces import most_pair_tiles
from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.nvfp4_operand import UNSHIFT, column_at, multiply_tile, order_build
from firmtoken.runtime.kernels.pair_tiles import load_tile, pair_tile_builds, pair_tile_rows
from firmtoken.runtime.kernels.slot_offsets import slot_offsets
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("most_tiles",))
def gate_up_groups(
    x_ptr,
    arena_ptr,
    a_ptr,
    order_ptr,
    tiles_ptr,
    most_tiles,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    SLOT_BYTES: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBALS_AT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
):
    """a[T*PAIRS, WIDTH] = silu(gate x) * (up x), x[T, HIDDEN] bf16 (fp32 in tests); zeros for pairs without a slot.

    Columns of x and of a are in operand order (`nvfp4_operand.py`).

    An expert lies in a slot of the arena (uint8): gate and up joined, codes at 0, scales at SCALE_AT, a global scale
    for each. Program (tile of outputs, tile of pairs).
    """
    tile = tl.program_id(1)
    if tile >= tl.load(tiles_ptr + 3 * most_tiles):
        return
    slot, pair, there = load_tile(order_ptr, tiles_ptr, most_tiles, tile, ROWS)
    first_output = tl.program_id(0) * (OUTPUTS // 2)
    output = first_output + tl.arange(0, OUTPUTS // 2)
    at = a_ptr + pair.to(tl.int64)[:, None] * WIDTH + output[None, :]
    kept = there[:, None] & (output < WIDTH)[None, :]
    if slot < 0:
        tl.store(at, tl.zeros((ROWS, OUTPUTS // 2), a_ptr.dtype.element_ty), mask=kept)
        return
    slot_ptr = arena_ptr + slot.to(tl.int64) * SLOT_BYTES
    found = gate_up_tile(
        x_ptr,
        pair // PAIRS * HIDDEN,
        slot_ptr,
        slot_ptr + SCALE_AT,
        (slot_ptr + GLOBALS_AT).to(tl.pointer_type(tl.float32)),
        first_output,
        HIDDEN,
        WIDTH,
        ROWS,
        OUTPUTS,
        STAGES,
        QUADS,
    )
    tl.store(at, tl.trans(found).to(a_ptr.dtype.element_ty), mask=kept)


@triton.jit
def gate_up_tile(
    x_ptr,
    x_rows,
    codes_ptr,
    scale_ptr,
    globals_ptr,
    first_output,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
):
    """fp32 [OUTPUTS / 2, ROWS]: silu(gate x) * (up x) for rows of x that begin at x_rows [ROWS]; gate and up joined.

    Columns of x are in operand order, and so is the result from `first_output` on.
    """
    line = tl.arange(0, OUTPUTS)
    place = tl.minimum(first_output + line // 16 * 8 + line % 8, WIDTH - 1)
    sums = multiply_tile(
        x_ptr,
        x_rows,
        codes_ptr,
        scale_ptr,
        column_at(place, QUADS) + line // 8 % 2 * WIDTH,
        HIDDEN,
        ROWS,
        OUTPUTS,
        STAGES,
        QUADS,
    )
    turns = tl.permute(tl.reshape(sums, (OUTPUTS // 16, 2, 8, ROWS)), (0, 2, 3, 1))
    gate, up = tl.split(turns)
    gate = tl.reshape(gate, (OUTPUTS // 2, ROWS)) * (tl.load(globals_ptr) * UNSHIFT)
    up = tl.reshape(up, (OUTPUTS // 2, ROWS)) * (tl.load(globals_ptr + 1) * UNSHIFT)
    return gate * tl.sigmoid(gate) * up


def gate_up_constants(
    hidden_size: int, expert_width: int, num_experts_per_token: int
) -> dict[str, int]:
    """What the function knows of a model."""
    offsets = slot_offsets(hidden_size, expert_width)
    return {
        "HIDDEN": hidden_size,
        "WIDTH": expert_width,
        "PAIRS": num_experts_per_token,
        "SLOT_BYTES": slot_bytes(slot_parts("nvfp4", hidden_size, expert_width)),
        "SCALE_AT": offsets["gate_scale"],
        "GLOBALS_AT": offsets["globals"],
    }


def gate_up_builds(
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
    model = gate_up_constants(hidden_size, expert_width, num_experts_per_token)
    cut = TileShapes(**shapes)
    return (
        *pair_tile_builds(pairs, num_experts, cut),
        order_build(launch.pointer("x"), launch.num_rows * hidden_size, quads=cut.quads),
        *(
            group_build(
                gate_up_groups,
                {"x_ptr": launch.pointer("x"), "arena_ptr": "*u8", "a_ptr": launch.pointer("a")},
                {**model, **cut.constants(rows)},
                warps=cut.warps(rows),
                columns=-(-2 * expert_width // cut.constants(rows)["OUTPUTS"]),
                tiles=most_pair_tiles(pairs, num_experts, rows),
            )
            for rows in SHAPES
            if rows <= pair_tile_rows(pairs, num_experts, cut)
        ),
    )


def group_build(
    function: object,
    pointers: Mapping[str, str],
    constants: Mapping[str, int],
    *,
    warps: int,
    columns: int,
    tiles: int,
    integers: tuple[str, ...] = ("most_tiles",),
) -> Build:
    """One form of a function that walks through tiles of pairs."""
    return Build(
        name=f"tiles of {constants['ROWS']} rows",
        function=function,
        arguments={
            **pointers,
            "order_ptr": "*i32",
            "tiles_ptr": "*i32",
            **dict.fromkeys(integers, "i32"),
        },
        constants=constants,
        num_warps=warps,
        grid=(columns, tiles),
    )
