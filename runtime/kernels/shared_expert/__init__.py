"""shared_expert: the expert that every row visits; no constants.

s[T,H] = sigmoid(h gate[1,H]^T) * down[H,I] (silu(gate rows of gate_up) * (up rows)), gate_up[2I,H] with the gate
first.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card, multiples, planned_gpu_card
from firmtoken.runtime.kernels.tile_shapes import ROW_TILES, STEP_COLUMNS

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
    gpu_card(
        op="shared_expert",
        name="triton_nvfp4",
        entry="firmtoken.runtime.kernels.shared_expert.triton_nvfp4:shared_expert",
        workspace="shared_expert",
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
            ("down_outputs", 4),
        ),
        computed=(
            ("down_lanes", "down_lanes"),
            ("early", "early_start"),
        ),
    ),
    gpu_card(
        op="shared_expert",
        name="triton_nvfp4_tiles",
        entry="firmtoken.runtime.kernels.shared_expert.triton_nvfp4_tiles:shared_expert",
        phases=("prefill",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights once for a tile of rows",
        builds="firmtoken.runtime.kernels.shared_expert.nvfp4_many:shared_expert_builds",
        constants=ROW_TILES,
        computed=(("large_stages", "large_tile_stages"), ("quads", "quads")),
        workspace="operand_order",
        limits=multiples(STEP_COLUMNS, ("hidden_size",), ("shared_intermediate_size",)),
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
