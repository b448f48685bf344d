"""moe_down with NVFP4 slots and many rows, launched on a GPU: pairs are put in order of their expert first."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.launch_pair_tiles import find_tiles
from firmtoken.runtime.kernels.moe_down.nvfp4_groups import down_constants, down_groups
from firmtoken.runtime.kernels.nvfp4_operand import ORDERED_COLUMNS
from firmtoken.runtime.kernels.tile_shapes import TileShapes


def moe_down(
    batch: DeviceRows | None,
    *,
    a: torch.Tensor,
    experts: ExpertSlots,
    rows: torch.Tensor,
    ids: torch.Tensor,
    map: torch.Tensor | None = None,  # noqa: A002  the operand's name in compiler/ops.py
    block: int | None = None,
    workspace: torch.Tensor,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    num_experts: int,
    **shapes: int,
) -> None:
    """rows[T*k,B] from a[T*k,I], both bf16 and contiguous: columns block * B on; experts as in moe_gate_up.

    The columns of `a` are in operand order, as moe_gate_up of the same name writes them. `workspace`: bytes, see
    `find_tiles`; `shapes`: the fields of `TileShapes`.
    """
    cut = TileShapes(**shapes)
    assert a.is_contiguous() and rows.is_contiguous() and expert_width % ORDERED_COLUMNS == 0
    found = find_tiles(ids, map, experts.first, num_experts, workspace, cut)
    columns = rows.shape[1]
    constants = cut.constants(found.rows)
    down_groups[-(-columns // constants["OUTPUTS"]), found.most](
        a,
        experts.arena.slots,
        rows,
        found.order,
        found.tiles,
        found.most,
        (block or 0) * columns,
        **down_constants(hidden_size, expert_width),
        COLUMNS=columns,
        **constants,
        num_warps=cut.warps(found.rows),
    )
