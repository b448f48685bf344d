"""resolve in plain torch."""

import torch

from firmtoken.runtime.kernels.batch import Batch
from firmtoken.runtime.kernels.expert_slots import ExpertSlots


def resolve(
    batch: Batch,
    *,
    table: torch.Tensor,
    staged: ExpertSlots,
    map: torch.Tensor,  # noqa: A002  the operand's name in compiler/ops.py
    miss: torch.Tensor,
    ids: torch.Tensor | None = None,
    wave: int | None = None,
) -> None:
    """map[E] from table[E], missing experts at consecutive staged slots, and their list in miss[1+2E]."""
    absent = table < 0
    if ids is not None:
        absent &= routed(ids, table.shape[0])
    experts = absent.nonzero().view(-1).int()
    if wave is not None:
        experts = experts[wave * staged.count :][: staged.count]
    count = experts.shape[0]
    assert count <= staged.count, f"{count} experts missing, {staged.count} staging slots"
    slots = torch.arange(staged.first, staged.first + count, dtype=torch.int32)
    if wave:
        map.fill_(-1)
    else:
        map.copy_(table)
    map[experts.long()] = slots
    miss[0] = count
    torch.stack((experts, slots), dim=1, out=miss[1 : 1 + 2 * count].view(count, 2))


def routed(ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """bool [E]: which experts occur in ids[T,k]; -1 is none."""
    found = torch.zeros(num_experts + 1, dtype=torch.bool)
    found[ids.view(-1).long()] = True  # -1 is the spare last entry
    return found[:num_experts]
