"""linear with FP8 weights and many rows, launched on a GPU: weights only, x stays bf16."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.linear.plain_many import TAIL_OUTPUTS, multiply_many
from firmtoken.runtime.kernels.matrices import MAX_PARTS, CodedMatrix
from firmtoken.runtime.kernels.tile_shapes import SHAPES, TileShapes


def linear(
    rows: DeviceRows | None,
    *,
    x: torch.Tensor,
    w: CodedMatrix,
    y: torch.Tensor,
    fp8_units: bool,
    large_step: int,
    small_step: int,
    **shapes: int,
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; x bf16, contiguous, y of any float type.

    `fp8_units`: the card converts e4m3 itself, from capability 8.9 on; without them bits are moved, to the same result.
    Steps: columns that the largest tile and smaller ones take at once; `shapes`: the fields of `TileShapes`.
    """
    cut = TileShapes(**shapes)
    (num_rows, width), num_outputs, num_coded = x.shape, y.shape[1], w.codes.shape[0]
    assert x.is_contiguous() and width % large_step == width % small_step == 0
    assert num_coded % 8 == num_outputs % 8 == y.stride(0) % 8 == 0
    assert len(w.starts) == w.scales.numel() - 1 < MAX_PARTS
    held = cut.tile_rows(num_rows)
    constants = cut.sizes(held)
    outputs = constants["OUTPUTS"]
    tail = num_outputs - num_coded
    tiles = -(-num_coded // outputs) - (-tail // TAIL_OUTPUTS.value)
    multiply_many[tiles, -(-num_rows // held)](
        x,
        w.codes if fp8_units else w.codes.view(torch.int8),
        w.scales,
        x if w.tail is None else w.tail,
        y,
        num_rows,
        num_coded // 8,
        num_outputs // 8,
        y.stride(0) // 8,
        *w.starts,
        *(num_outputs,) * (MAX_PARTS - 1 - len(w.starts)),
        WIDTH=width,
        FORMAT="fp8" if fp8_units else "fp8_bits",
        TAIL=w.tail is not None,
        BLOCK=large_step if held == SHAPES[-1] else small_step,
        **constants,
        num_warps=cut.warps(held),
    )
