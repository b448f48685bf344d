"""shared_expert: the expert that every row visits; no constants.

s[T,H] = sigmoid(h gate[1,H]^T) * down[H,I] (silu(gate rows of gate_up) * (up rows)), gate_up[2I,H] with the gate
first.
"""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

CARDS = (
    KernelCard(
        op="shared_expert",
        name="torch",
        entry="firmtoken.runtime.kernels.shared_expert.reference:shared_expert",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    planned_gpu_card(
        op="shared_expert",
        name="triton_nvfp4",
        phases=("decode",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers, one launch a half",
        builds="firmtoken.runtime.kernels.shared_expert.nvfp4_builds:shared_expert_builds",
        constants=(
            ("gate_up_warps", 1),
            ("gate_up_lanes", 32),
            ("gate_up_outputs", 2),
            ("down_warps", 1),
        ),
        computed=(
            ("down_lanes", "down_lanes"),
            ("down_outputs", "down_outputs"),
            ("early", "early_start"),
        ),
    ),
    planned_gpu_card(
        op="shared_expert",
        name="triton_nvfp4_tiles",
        phases=("prefill",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights once for a tile of rows",
    ),
    planned_gpu_card(
        op="shared_expert",
        name="triton_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="one launch a half",
    ),
)
