"""shared_expert with NVFP4 weights and many rows, launched on a GPU: two launches."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.launch_operand import in_operand_order
from firmtoken.runtime.kernels.linear.triton_nvfp4_tiles import launch_many
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.nvfp4_operand import ORDERED_COLUMNS
from firmtoken.runtime.kernels.shared_expert.nvfp4_many import gate_up_grid, gate_up_many
from firmtoken.runtime.kernels.tile_shapes import TileShapes


def shared_expert(
    batch: DeviceRows | None,
    *,
    h: torch.Tensor,
    gate_up: PackedMatrix,
    down: PackedMatrix,
    gate: torch.Tensor,
    s: torch.Tensor,
    workspace: torch.Tensor,
    **shapes: int,
) -> None:
    """s[T,H] = sigmoid(gate h) * down(silu(gate rows h) * (up rows h)); h, gate and s bf16, contiguous.

    `workspace`: bytes; T rows of H and of I numbers as in h, then T fp32. `shapes`: the fields of `TileShapes`.
    """
    cut = TileShapes(**shapes)
    (num_rows, hidden_size), width = h.shape, gate_up.packed.shape[0] // 2
    assert width % ORDERED_COLUMNS == 0
    assert workspace.numel() >= num_rows * ((hidden_size + width) * h.element_size() + 4)
    ordered = in_operand_order(h, workspace, quads=cut.quads)
    begin, end = (count * h.element_size() for count in (h.numel(), h.numel() + num_rows * width))
    a = workspace[begin:end].view(h.dtype).view(num_rows, width)
    share = workspace[end : end + 4 * num_rows].view(torch.float32)
    rows = cut.tile_rows(num_rows)
    constants = cut.constants(rows)
    gate_up_many[gate_up_grid(num_rows, width, rows, constants["OUTPUTS"])](
        ordered,
        gate_up.packed,
        gate_up.scale.view(torch.uint8),
        gate_up.globals,
        gate,
        a,
        share,
        num_rows,
        HIDDEN=hidden_size,
        WIDTH=width,
        **constants,
        num_warps=cut.warps(rows),
    )
    launch_many(a, down, s, share, cut)
