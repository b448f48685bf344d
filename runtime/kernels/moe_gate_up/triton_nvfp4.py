"""moe_gate_up with NVFP4 slots and few rows, launched on a GPU; alone or with the shared expert."""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.moe_gate_up.nvfp4_pairs import gate_up_pairs
from firmtoken.runtime.kernels.nvfp4_blocks import outputs_of_a_program
from firmtoken.runtime.kernels.slot_offsets import slot_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGateUp:
    """The shared expert as one more expert of every row."""

    gate_up: PackedMatrix
    """[2I,H], gate first, each half with its own global scale."""
    gate: torch.Tensor
    """[1,H]: the row's share of it is sigmoid(x gate^T)."""
    a: torch.Tensor
    """[T,I], written: silu(gate x) * (up x)."""
    share: torch.Tensor
    """fp32 [T], written: that share."""


def moe_gate_up(
    batch: DeviceRows | None,
    *,
    x: torch.Tensor,
    experts: ExpertSlots,
    a: torch.Tensor,
    ids: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    shared_gate_up: PackedMatrix | None = None,
    shared_gate: torch.Tensor | None = None,
    shared_a: torch.Tensor | None = None,
    share: torch.Tensor | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    warps: int,
    lanes: int,
    outputs: int,
    early: bool,
) -> None:
    """a[T*k,I] from x[T,H]; experts by ids[T,k] from the range's first slot, or by absolute slots[T,k] (int32).

    x, a bf16 or fp32, contiguous. With the operands of the shared expert its a and its share of each row are written
    as well.
    """
    wanted = slots if slots is not None else ids
    assert wanted is not None
    shared = None
    if shared_gate_up is not None:
        assert shared_gate is not None and shared_a is not None and share is not None
        shared = SharedGateUp(gate_up=shared_gate_up, gate=shared_gate, a=shared_a, share=share)
    offsets = slot_offsets(hidden_size, expert_width)
    launch_gate_up(
        x,
        wanted,
        experts.arena.slots,
        a,
        shared,
        first=experts.first if slots is None else 0,
        expert_width=expert_width,
        pairs=num_experts_per_token,
        scale_at=offsets["gate_scale"],
        globals_at=offsets["globals"],
        warps=warps,
        lanes=lanes,
        outputs=outputs,
        early=early,
    )


def launch_gate_up(
    x: torch.Tensor,
    slots: torch.Tensor,
    arena: torch.Tensor,
    a: torch.Tensor,
    shared: SharedGateUp | None,
    *,
    first: int,
    expert_width: int,
    pairs: int,
    scale_at: int,
    globals_at: int,
    warps: int,
    lanes: int,
    outputs: int,
    early: bool,
) -> None:
    """Both halves of `pairs` experts of each row, and of the shared expert."""
    num_rows, hidden_size = x.shape
    assert x.is_contiguous() and a.is_contiguous() and hidden_size % 16 == 0
    # Pointers that are not read must still be given.
    packed = shared.gate_up if shared else None
    width = shared.a.shape[1] if shared else 0
    tile = outputs_of_a_program(warps, lanes, outputs)
    gate_up_pairs[
        num_rows * (pairs + (shared is not None)),
        -(-max(expert_width, width) // tile) + (shared is not None),
    ](
        x,
        slots,
        arena,
        a,
        packed.packed if packed else arena,
        packed.scale.view(torch.uint8) if packed else arena,
        packed.globals if packed else x,
        shared.gate if shared else x,
        shared.a if shared else a,
        shared.share if shared else a,
        first,
        HIDDEN=hidden_size,
        WIDTH=expert_width,
        PAIRS=pairs,
        SHARED=width,
        SLOT_BYTES=arena.shape[1],
        SCALE_AT=scale_at,
        GLOBALS_AT=globals_at,
        WARPS=warps,
        LANES=lanes,
        OUTPUTS=outputs,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
