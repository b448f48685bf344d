"""admit launched on a GPU: one program, inside the captured step."""

import torch

from firmtoken.runtime.kernels.admit.step_slots import admit_step, padded
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.expert_slots import ExpertSlots


def admit(
    rows: DeviceRows,
    *,
    ids: torch.Tensor,
    table: torch.Tensor,
    lru: torch.Tensor,
    slots: torch.Tensor,
    miss: torch.Tensor,
    cache: ExpertSlots,
    overflow: ExpertSlots,
    num_experts: int,
    warps: int,
    early: bool,
) -> None:
    """slots[T,k] for ids[T,k]; table[E], lru[>= range] and miss[1+2E] as the contract says; contiguous, E a layer's."""
    assert rows.held is not None, "its word is there"
    assert ids.is_contiguous() and slots.is_contiguous()
    assert table.shape[0] == num_experts >= cache.count
    admit_step[1,](
        ids,
        table,
        lru,
        slots,
        miss,
        rows.held,
        ids.numel(),
        cache.first,
        cache.count,
        overflow.first,
        PAIRS=padded(ids.numel()),
        EXPERTS=num_experts,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
