"""resolve launched on a GPU: one program."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.resolve.layer_slots import resolve_layer


def resolve(
    rows: DeviceRows,
    *,
    table: torch.Tensor,
    staged: ExpertSlots,
    map: torch.Tensor,  # noqa: A002  the operand's name in compiler/ops.py
    miss: torch.Tensor,
    ids: torch.Tensor | None = None,
    wave: int | None = None,
    warps: int,
) -> None:
    """map[E] from table[E], missing experts at consecutive staged slots, and their list in miss[1+2E]."""
    assert ids is None or ids.is_contiguous()
    resolve_layer[1,](
        table,
        table if ids is None else ids,  # not read then, but a pointer must be given
        map,
        miss,
        0 if ids is None else ids.numel(),
        0 if wave is None else wave,
        staged.first,
        staged.count,
        EXPERTS=table.shape[0],
        ROUTED=ids is not None,
        num_warps=warps,
    )
