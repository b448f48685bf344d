"""linear with NVFP4 weights and many rows, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.launch_operand import in_operand_order
from firmtoken.runtime.kernels.linear.nvfp4_many import many_grid, multiply_many
from firmtoken.runtime.kernels.matrices import MAX_PARTS, PackedMatrix
from firmtoken.runtime.kernels.nvfp4_operand import ORDERED_COLUMNS
from firmtoken.runtime.kernels.tile_shapes import TileShapes


def linear(
    rows: DeviceRows | None,
    *,
    x: torch.Tensor,
    w: PackedMatrix,
    y: torch.Tensor,
    workspace: torch.Tensor,
    **shapes: int,
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; x bf16, contiguous, y of any float type.

    `workspace`: bytes, for a copy of x; `shapes`: the fields of `TileShapes`.
    """
    cut = TileShapes(**shapes)
    launch_many(in_operand_order(x, workspace, quads=cut.quads), w, y, None, cut)


def launch_many(
    x: torch.Tensor,
    w: PackedMatrix,
    y: torch.Tensor,
    share: torch.Tensor | None,
    cut: TileShapes,
) -> None:
    """y = x w^T, each row times its share (fp32 [T]) where given; the columns of x in operand order."""
    (num_rows, width), num_outputs = x.shape, w.packed.shape[0]
    assert x.is_contiguous() and width % ORDERED_COLUMNS == num_outputs % 8 == y.stride(0) % 8 == 0
    assert len(w.starts) == w.globals.numel() - 1 < MAX_PARTS
    rows = cut.tile_rows(num_rows)
    constants = cut.constants(rows)
    multiply_many[many_grid(num_rows, num_outputs, rows, constants["OUTPUTS"])](
        x,
        w.packed,
        w.scale.view(torch.uint8),
        w.globals,
        w.globals if share is None else share,
        y,
        num_rows,
        num_outputs // 8,
        y.stride(0) // 8,
        *w.starts,
        *(num_outputs,) * (MAX_PARTS - 1 - len(w.starts)),
        WIDTH=width,
        SHARED=share is not None,
        **constants,
        num_warps=cut.warps(rows),
    )
