"""moe_down with NVFP4 slots and few rows, launched on a GPU: a row for each pair, or summed into the hidden rows."""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.expert_slots import ExpertSlots
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.moe_down.nvfp4_pairs import down_combine, down_pairs
from firmtoken.runtime.kernels.nvfp4_blocks import outputs_of_a_program
from firmtoken.runtime.kernels.slot_offsets import DOWN_GLOBAL_BYTES, slot_offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDown:
    """The shared expert as one more expert of every row."""

    a: torch.Tensor
    """[T,I]"""
    share: torch.Tensor
    """fp32 [T]: the row's share of it."""
    down: PackedMatrix
    """[H,I]"""


def moe_down(
    batch: DeviceRows | None,
    *,
    a: torch.Tensor,
    experts: ExpertSlots,
    rows: torch.Tensor,
    ids: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    shared_down: PackedMatrix | None = None,
    shared_a: torch.Tensor | None = None,
    share: torch.Tensor | None = None,
    s: torch.Tensor | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    warps: int,
    lanes: int,
    outputs: int,
    early: bool,
) -> None:
    """rows[T*k,H] from a[T*k,I], and s[T,H] from the shared expert's a; experts as in moe_gate_up."""
    wanted = slots if slots is not None else ids
    assert wanted is not None
    shared = None
    if shared_down is not None:
        assert shared_a is not None and share is not None
        shared = SharedDown(a=shared_a, share=share, down=shared_down)
    offsets = slot_offsets(hidden_size, expert_width)
    launch_down(
        a,
        wanted,
        experts.arena.slots,
        rows,
        shared,
        s,
        first=experts.first if slots is None else 0,
        expert_width=expert_width,
        pairs=num_experts_per_token,
        codes_at=offsets["down"],
        scale_at=offsets["down_scale"],
        global_at=offsets["globals"] + DOWN_GLOBAL_BYTES,
        warps=warps,
        lanes=lanes,
        outputs=outputs,
        early=early,
    )


def launch_down(
    a: torch.Tensor,
    slots: torch.Tensor,
    arena: torch.Tensor,
    rows: torch.Tensor,
    shared: SharedDown | None,
    s: torch.Tensor | None,
    *,
    first: int,
    expert_width: int,
    pairs: int,
    codes_at: int,
    scale_at: int,
    global_at: int,
    warps: int,
    lanes: int,
    outputs: int,
    early: bool,
) -> None:
    """Down of `pairs` experts of each row, and of the shared expert."""
    assert (shared is None) == (s is None)
    assert a.is_contiguous() and rows.is_contiguous()
    hidden_size = rows.shape[1]
    num_rows = rows.shape[0] // pairs if pairs else rows.shape[0]
    packed = shared.down if shared else None
    # Pointers that are not read or written must still be given.
    tile = outputs_of_a_program(warps, lanes, outputs)
    down_pairs[num_rows * (pairs + (shared is not None)), -(-hidden_size // tile)](
        a,
        slots,
        arena,
        rows,
        shared.a if shared else a,
        shared.share if shared else a,
        packed.packed if packed else arena,
        packed.scale.view(torch.uint8) if packed else arena,
        packed.globals if packed else rows,
        rows if s is None else s,
        first,
        HIDDEN=hidden_size,
        WIDTH=expert_width,
        PAIRS=pairs,
        SHARED=shared.a.shape[1] if shared else 0,
        SLOT_BYTES=arena.shape[1],
        CODES_AT=codes_at,
        SCALE_AT=scale_at,
        GLOBAL_AT=global_at,
        WARPS=warps,
        LANES=lanes,
        OUTPUTS=outputs,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )


def moe_down_combine(
    batch: DeviceRows | None,
    *,
    a: torch.Tensor,
    experts: ExpertSlots,
    wts: torch.Tensor,
    hid: torch.Tensor,
    ids: torch.Tensor | None = None,
    slots: torch.Tensor | None = None,
    shared: SharedDown | None = None,
    hidden_size: int,
    expert_width: int,
    num_experts_per_token: int,
    warps: int,
    lanes: int,
    outputs: int,
    early: bool,
) -> None:
    """hid[T,H] += sum over k of wts[T,k] * down a, a[T*k,I], + the shared expert's: moe_down and combine in one launch.

    Nothing is rounded between the two; the order of the sum is fixed. Experts as in moe_gate_up.
    """
    wanted = slots if slots is not None else ids
    assert wanted is not None
    assert a.is_contiguous() and hid.is_contiguous() and wts.is_contiguous()
    offsets = slot_offsets(hidden_size, expert_width)
    arena = experts.arena.slots
    packed = shared.down if shared else None
    # Pointers that are not read must still be given.
    tile = outputs_of_a_program(warps, lanes, outputs)
    down_combine[hid.shape[0], -(-hidden_size // tile)](
        a,
        wanted,
        wts,
        arena,
        hid,
        shared.a if shared else a,
        shared.share if shared else a,
        packed.packed if packed else arena,
        packed.scale.view(torch.uint8) if packed else arena,
        packed.globals if packed else wts,
        experts.first if slots is None else 0,
        HIDDEN=hidden_size,
        WIDTH=expert_width,
        PAIRS=num_experts_per_token,
        SHARED=shared.a.shape[1] if shared else 0,
        SLOT_BYTES=arena.shape[1],
        CODES_AT=offsets["down"],
        SCALE_AT=offsets["down_scale"],
        GLOBAL_AT=offsets["globals"] + DOWN_GLOBAL_BYTES,
        WARPS=warps,
        LANES=lanes,
        OUTPUTS=outputs,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
