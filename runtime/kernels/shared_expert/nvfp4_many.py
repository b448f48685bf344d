"""The shared expert for many rows, on tensor cores (W4A16): gate and up halves as those of an expert with every row.

The last program of each tile of rows makes their share of it, sigmoid(h gate^T), which the product of down applies.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types.

from collections.abc import Iterator

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.linear.nvfp4_many import product_builds
from firmtoken.runtime.kernels.moe_gate_up.nvfp4_groups import gate_up_tile
from firmtoken.runtime.kernels.nvfp4_operand import STEP, column_at, order_build
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=("num_rows",))
def gate_up_many(
    h_ptr,
    codes_ptr,
    scale_ptr,
    globals_ptr,
    gate_ptr,
    a_ptr,
    share_ptr,
    num_rows,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STAGES: tl.constexpr,
    QUADS: tl.constexpr,
):
    """a[num_rows, WIDTH] = silu(gate h) * (up h), h[num_rows, HIDDEN] bf16 (fp32 in tests); share fp32 [num_rows].

    Columns of h and of a are in operand order (`nvfp4_operand.py`). Codes [2 WIDTH, HIDDEN / 2], gate first, a global
    scale for each half; gate_ptr [HIDDEN] in the type of h. Program (tile of outputs or, last, the share; tile of
    rows).
    """
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    h_rows = tl.minimum(row, num_rows - 1) * HIDDEN
    first_output = tl.program_id(0) * (OUTPUTS // 2)
    if first_output < WIDTH:
        found = gate_up_tile(
            h_ptr,
            h_rows,
            codes_ptr,
            scale_ptr,
            globals_ptr,
            first_output,
            HIDDEN,
            WIDTH,
            ROWS,
            OUTPUTS,
            STAGES,
            QUADS,
        )
        output = first_output + tl.arange(0, OUTPUTS // 2)
        at = a_ptr + row.to(tl.int64)[:, None] * WIDTH + output[None, :]
        kept = (row < num_rows)[:, None] & (output < WIDTH)[None, :]
        tl.store(at, tl.trans(found).to(a_ptr.dtype.element_ty), mask=kept)
    else:
        sums = tl.zeros((ROWS, STEP), tl.float32)
        for start in tl.range(0, HIDDEN, STEP):
            place = start + tl.arange(0, STEP)
            gate = tl.load(gate_ptr + column_at(place, QUADS)).to(tl.float32)
            h = tl.load(h_ptr + h_rows[:, None] + place[None, :]).to(tl.float32)
            sums += h * gate[None, :]
        share = tl.sigmoid(tl.sum(sums, axis=1))
        tl.store(share_ptr + row, share, mask=row < num_rows)


def shared_expert_builds(launch: Launch, **shapes: int) -> tuple[Build, ...]:
    """Both launches, a form for each tile that so many rows may ask for."""
    return (
        order_build(
            launch.pointer("h"), launch.num_rows * launch.columns("h"), quads=shapes["quads"]
        ),
        *_gate_up_builds(launch, TileShapes(**shapes)),
        *product_builds(launch, "down", launch.pointer("h"), shared=True, shapes=shapes),
    )


def _gate_up_builds(launch: Launch, cut: TileShapes) -> Iterator[Build]:
    pointer, width = launch.pointer("h"), launch.columns("down")
    for rows in SHAPES:
        if rows <= cut.tile_rows(launch.num_rows):
            constants = cut.constants(rows)
            yield Build(
                name=f"gate_up, tiles of {rows} rows",
                function=gate_up_many,
                arguments={
                    "h_ptr": pointer,
                    **dict.fromkeys(("codes_ptr", "scale_ptr"), "*u8"),
                    "globals_ptr": "*fp32",
                    "gate_ptr": pointer,
                    "a_ptr": pointer,
                    "share_ptr": "*fp32",
                    "num_rows": "i32",
                },
                constants={"HIDDEN": launch.columns("h"), "WIDTH": width, **constants},
                num_warps=cut.warps(rows),
                grid=gate_up_grid(launch.num_rows, width, rows, constants["OUTPUTS"]),
            )


def gate_up_grid(num_rows: int, width: int, rows: int, outputs: int) -> tuple[int, int]:
    """Programs of the first launch."""
    return -(-2 * width // outputs) + 1, -(-num_rows // rows)
