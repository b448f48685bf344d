"""linear with NVFP4 weights and few rows, launched on a GPU."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.linear.few_rows import rows_at_once
from firmtoken.runtime.kernels.linear.nvfp4_rows import (
    launch_constants,
    launch_grid,
    multiply_rows,
)
from firmtoken.runtime.kernels.linear.nvfp4_tiles import (
    TILE_COLUMNS,
    multiply_tiles,
    tile_constants,
    tile_grid,
    tile_rows,
)
from firmtoken.runtime.kernels.matrices import MAX_PARTS, PackedMatrix


def linear(
    rows: DeviceRows | None,
    *,
    x: torch.Tensor,
    w: PackedMatrix,
    y: torch.Tensor,
    few: int,
    outputs: int,
    unroll: int,
    tile_outputs: int,
    early: bool,
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; x bf16 with rows of a multiple of 16 bytes, y of any float type."""
    # The norm is not read, but a pointer must be given.
    multiply(
        x,
        w,
        w.globals,
        y,
        normed=False,
        eps=0.0,
        few=few,
        outputs=outputs,
        unroll=unroll,
        tile_outputs=tile_outputs,
        early=early,
    )


def multiply(
    x: torch.Tensor,
    w: PackedMatrix,
    norm: torch.Tensor,
    y: torch.Tensor,
    *,
    normed: bool,
    eps: float,
    few: int,
    outputs: int,
    unroll: int,
    tile_outputs: int,
    early: bool,
) -> None:
    """y = x w^T, or rmsnorm(x) * norm in place of x where `normed` (norm fp32 [K])."""
    num_rows, width = x.shape
    num_outputs = w.packed.shape[0]
    assert x.dtype in (torch.bfloat16, torch.float32)
    assert x.stride(0) % 8 == 0 and width % 16 == 0
    assert len(w.starts) == w.globals.numel() - 1 < MAX_PARTS
    starts = (*w.starts, *(num_outputs,) * (MAX_PARTS - 1 - len(w.starts)))
    arguments = (
        x,
        w.packed,
        w.scale.view(torch.uint8),
        w.globals,
        norm,
        y,
        num_rows,
        num_outputs,
        width // 16,
        x.stride(0) // 8,
        y.stride(0),
        *starts,
        eps,
    )
    options = launch_options(early=early)
    if num_rows > few and width % TILE_COLUMNS == 0:
        held = tile_rows(num_rows, normed=normed)
        grid = tile_grid(num_rows, num_outputs, normed=normed, tile_outputs=tile_outputs)
        constants = tile_constants(held, normed=normed, tile_outputs=tile_outputs, early=early)
        multiply_tiles[grid](*arguments, **constants, num_warps=1, **options)
    else:
        held = rows_at_once(num_rows)
        grid = launch_grid(num_rows, num_outputs, outputs=outputs)
        constants = launch_constants(
            held, normed=normed, outputs=outputs, unroll=unroll, early=early
        )
        multiply_rows[grid](*arguments, **constants, num_warps=1, **options)
