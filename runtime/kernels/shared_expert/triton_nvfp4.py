"""shared_expert with NVFP4 weights and few rows, launched on a GPU: two launches, as an expert that every row has."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.matrices import PackedMatrix
from firmtoken.runtime.kernels.moe_down.triton_nvfp4 import SharedDown, launch_down
from firmtoken.runtime.kernels.moe_gate_up.triton_nvfp4 import SharedGateUp, launch_gate_up


def shared_expert(
    batch: DeviceRows | None,
    *,
    h: torch.Tensor,
    gate_up: PackedMatrix,
    down: PackedMatrix,
    gate: torch.Tensor,
    s: torch.Tensor,
    workspace: torch.Tensor,
    gate_up_warps: int,
    gate_up_lanes: int,
    gate_up_outputs: int,
    down_warps: int,
    down_lanes: int,
    down_outputs: int,
    early: bool,
) -> None:
    """s[T,H] = sigmoid(gate h) * down(silu(gate rows h) * (up rows h)).

    `workspace`: bytes; of T rows of I numbers as in h, then of T fp32.
    """
    num_rows, width = h.shape[0], gate_up.packed.shape[0] // 2
    end = num_rows * width * h.element_size()
    a = workspace[:end].view(h.dtype).view(num_rows, width)
    share = workspace[end : end + 4 * num_rows].view(torch.float32)
    # There is no pair, so nothing is read from an arena; pointers must still be given.
    arena = gate_up.packed
    launch_gate_up(
        h,
        arena,
        arena,
        a,
        SharedGateUp(gate_up=gate_up, gate=gate, a=a, share=share),
        first=0,
        expert_width=0,
        pairs=0,
        scale_at=0,
        globals_at=0,
        warps=gate_up_warps,
        lanes=gate_up_lanes,
        outputs=gate_up_outputs,
        early=early,
    )
    launch_down(
        a,
        arena,
        arena,
        s,
        SharedDown(a=a, share=share, down=down),
        s,
        first=0,
        expert_width=0,
        pairs=0,
        codes_at=0,
        scale_at=0,
        global_at=0,
        warps=down_warps,
        lanes=down_lanes,
        outputs=down_outputs,
        early=early,
    )
