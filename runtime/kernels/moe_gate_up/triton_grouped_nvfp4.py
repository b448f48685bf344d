"""moe_gate_up with NVFP4 slots and many rows, launched on a GPU: pairs are put in order of their expert first."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.launch_operand import in_operand_order
from firmtoken.runtime.kernels.launch_pair_tiles import find_tiles
from firmtoken.runtime.kernels.moe_gate_up.nvfp4_groups import gate_up_constants, gate_up_groups
from firmtoken.runtime.kernels.nvfp4_operand import ORDERED_COLUMNS
from firmtoken.runtime.kernels.tile_shapes import TileShapes


def moe_gate_up(
    batch: DeviceRows | None,
    *,
    x: torch.Tensor,
    experts: ExpertSlots,
    a: torch.Tensor,
    ids: torch.Tensor,
    map: torch.Tensor | None = None,  # noqa: A002  the operand's name in compiler/ops.py
    workspace: torch.Tensor,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    num_experts: int,
    **shapes: int,
) -> None:
    """a[T*k,I] from x[T,H], both bf16 and contiguous; experts by int32 ids[T,k], from the range's first slot or by map.

    The columns of `a` are in operand order (`nvfp4_operand.py`), as moe_down of the same name reads them. No program of
    a plan gives it `slots`. `workspace`: bytes, for a copy of x and what `find_tiles` needs; `shapes`: the fields of
    `TileShapes`.
    """
    cut = TileShapes(**shapes)
    assert a.is_contiguous() and expert_width % ORDERED_COLUMNS == 0
    ordered = in_operand_order(x, workspace, quads=cut.quads)
    rest = workspace[x.numel() * x.element_size() :]
    found = find_tiles(ids, map, experts.first, num_experts, rest, cut)
    constants = cut.constants(found.rows)
    gate_up_groups[-(-2 * expert_width // constants["OUTPUTS"]), found.most](
        ordered,
        experts.arena.slots,
        a,
        found.order,
        found.tiles,
        found.most,
        **gate_up_constants(hidden_size, expert_width, num_experts_per_token),
        **constants,
        num_warps=cut.warps(found.rows),
    )
